// Sends test samples once a second, as the demo breaker's stage asks for, until it has recovered.
"use strict";
(() => {
  const place = document.getElementById("first-run"), start = document.getElementById("send-all");
  const told = document.getElementById("sending");
  if (!place || !start) return;
  const HEALTHY_FIRST = 3, TIMES_MAX = 60;
  const stage = () => document.getElementById("live").dataset.stage;

  async function send(kind) {
    const body = new URLSearchParams({ csrf: place.querySelector("[name=csrf]").value, breaker: place.dataset.breaker, kind });
    const got = await fetch(place.dataset.action, { method: "POST", body, headers: { "HX-Request": "true" } }).catch(() => null);
    if (got && got.ok) return true;
    const text = got ? new DOMParser().parseFromString(await got.text(), "text/html").body.textContent.trim() : "";
    told.textContent = `Stopped: ${text || "the service did not answer."}`;
    return false;
  }

  const pause = (ms) => new Promise((go) => setTimeout(go, ms));

  start.addEventListener("click", async () => {
    start.disabled = true;
    if (stage() === "done") { told.textContent = "Once more: failing samples would open it again. Use the buttons beside."; start.disabled = false; return; }
    for (let times = 0; times < TIMES_MAX && stage() !== "done"; times += 1) {
      const kind = times < HEALTHY_FIRST || stage() === "recover" ? "healthy" : "failing";
      told.textContent = kind === "failing" ? "Sending failing samples until it trips…" : times < HEALTHY_FIRST ? "Sending healthy samples…" : "Sending healthy samples until it has recovered…";
      if (!await send(kind)) { start.disabled = false; return; }
      await pause(500);
      window.console_page.refresh();
      await pause(500);
    }
    told.textContent = stage() === "done" ? "Done." : "It has not moved in a minute; look at its figures.";
    start.disabled = false;
  });
})();
