// The last test of each channel that was sent from this tab stays on the page, whatever came of it.
"use strict";
(() => {
  const KEPT = "tests of channels";
  const read = () => { try { return JSON.parse(sessionStorage.getItem(KEPT)) || {}; } catch { return {}; } };

  function show() {
    const tests = read();
    for (const place of document.querySelectorAll("[data-tested]")) {
      const test = tests[place.dataset.tested];
      place.hidden = !test;
      if (!test || place.dataset.shown === String(test.ms)) continue;
      place.dataset.shown = test.ms;
      place.classList.toggle("wrong", !test.ok);
      const time = document.createElement("time");
      time.dataset.ms = test.ms;
      time.dataset.relative = "";
      place.replaceChildren(test.ok ? "Last test: it arrived, " : "Last test: it failed, ", time, test.ok ? "" : `: ${test.words}`);
    }
    window.console_page.tellTimes();
  }

  document.addEventListener("htmx:after:swap", (event) => {
    const { ctx } = event.detail, form = ctx && ctx.sourceElement && ctx.sourceElement.closest("[data-test]");
    if (!form || !ctx.response) return;
    const words = document.getElementById("notice").textContent.replace(/\s+/g, " ").replace("Not done.", "").trim();
    const tests = read();
    tests[form.dataset.test] = { ms: window.console_page.clock(), ok: ctx.response.status < 400, words: words.slice(0, 300) };
    sessionStorage.setItem(KEPT, JSON.stringify(Object.fromEntries(Object.entries(tests).slice(-50))));
    show();
  });
  document.addEventListener("console:shown", show);
  show();
})();
