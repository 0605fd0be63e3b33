// The form of a breaker: what belongs to its kind, spans in words, rows of metadata; and trying the draft as it is typed.
"use strict";
(() => {
  const $ = (selector, from = document) => from.querySelector(selector);
  const $$ = (selector, from = document) => [...from.querySelectorAll(selector)];
  const form = $("#edit"), section = $("#try"), { span, number, amount } = window.console_chart;
  const field = (name) => form.elements[name];
  const set = (node, text) => { if (node.textContent !== text) node.textContent = text; };

  // the form

  function tidy() {
    const kind = field("kind").value;
    for (const one of $$("[data-kinds]", form)) one.hidden = !one.dataset.kinds.split(" ").includes(kind);
    for (const output of $$("[data-span-of]", form)) {
      const input = field(output.dataset.spanOf), text = input.value.trim() || input.placeholder;
      set(output, /^\d+$/.test(text) ? span(Number(text)) : "");
    }
    const share = unit().times > 1, limit = field("threshold").value.trim();
    set($("[data-unit-of]", form), share ? "(share, 0 to 1)" : "");
    set($("[data-share]", form), share && limit !== "" && Number.isFinite(Number(limit)) ? amount(Number(limit), unit()) : "");
    for (const wrong of $$(".wrong[id^='e-']", form)) {
      const input = $(`#${CSS.escape(`f-${wrong.id.slice(2)}`)}`, form);
      if (!input) continue;
      if (wrong.textContent) input.setAttribute("aria-invalid", "true"); else input.removeAttribute("aria-invalid");
    }
    slide();
    keep();
  }

  // rates are shown in percent, here as everywhere
  const unit = () => field("kind").value === "error_rate" ? { times: 100, unit: " %" } : { times: 1, unit: "" };

  // what was changed and is not saved: named, put back on demand, and not left without a question

  let sent = false;
  const isChanged = (one) => one.type === "checkbox" ? one.checked !== one.defaultChecked : one.tagName === "SELECT" ? one.selectedIndex !== Math.max(0, [...one.options].findIndex((option) => option.defaultSelected)) : one.value !== one.defaultValue;
  const nameOf = (one) => one.name.startsWith("meta_") ? "labels" : (one.labels[0] ? one.labels[0].firstChild.textContent.trim() || one.labels[0].textContent.trim() : one.name).toLowerCase();
  const unsaved = () => [...new Set([...form.elements].filter((one) => one.name && one.type !== "hidden" && !["windows", "grace_ms", "trips_a_week"].includes(one.name) && isChanged(one)).map(nameOf))];
  const merged = () => Boolean(field("merged"));

  function keep() {
    const names = unsaved(), some = names.length > 3 ? `${names.slice(0, 3).join(", ")} and ${names.length - 3} more` : names.join(", ");
    $("#put-back").disabled = !names.length && !merged();
    set($("#unsaved"), names.length ? `Not saved: ${some}` : merged() ? "Not saved: your changes" : "");
  }

  $("#put-back").addEventListener("click", () => {
    if (merged()) { sent = true; location.reload(); return; }
    form.reset();
    tidy();
    later();
  });
  addEventListener("beforeunload", (event) => { if (!sent && (unsaved().length || merged())) event.preventDefault(); });
  form.addEventListener("submit", () => { sent = true; });
  document.addEventListener("htmx:before:response", (event) => { if (event.detail.ctx.response.status >= 400) sent = false; });

  let told = "";
  new MutationObserver(() => {
    tidy();
    const first = $("[aria-invalid]", form), now = $$(".wrong[id^='e-']", form).map((one) => one.textContent).join("|");
    if (now !== told && first) {
      const folded = first.closest("details");
      if (folded) folded.open = true;
      first.focus();
    }
    told = now;
  }).observe(form, { childList: true, subtree: true });

  form.addEventListener("click", (event) => {
    if (event.target.id !== "more-metadata") return;
    const rows = $("#metadata"), made = rows.lastElementChild.cloneNode(true);
    $$("input", made).forEach((input, i) => { input.value = ""; input.setAttribute("aria-label", `${i ? "Value" : "Key"} ${rows.children.length + 1}`); });
    rows.append(made);
    $("input", made).focus();
  });
  $("#windows-file").addEventListener("change", async (event) => {
    const [file] = event.target.files;
    if (file && file.size < 200000) { $("#f-windows").value = await file.text(); later(); }
  });

  // sliders beside the fields that are tried most

  const MS = [0, 1, 2, 5, 10, 15, 20, 30, 45, 60, 90, 120, 180, 300, 600, 900, 1800, 3600, 7200, 21600, 43200, 86400].map((s) => s * 1000);
  const COUNTS = [0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 40, 50, 75, 100, 150, 200, 300, 500, 1000];
  const SLIDERS = [["threshold", "Threshold", null], ["window_ms", "Window", MS], ["min_count", "Samples needed", COUNTS], ["cooldown_ms", "Cooldown", MS], ["min_state_duration_ms", "Least time in a state", MS]];
  const STEPS = 200;
  let ends = null, held = null;

  function threshold(step) {
    return ends[0] + ((ends[1] - ends[0]) * step) / STEPS;
  }

  function rounded(value) {
    return +value.toPrecision(Math.abs(value) >= 100 ? 4 : 3);
  }

  for (const [name, label, stops] of SLIDERS) {
    const row = document.createElement("div"), words = document.createElement("label"), range = document.createElement("input"), value = document.createElement("output");
    words.textContent = label;
    words.htmlFor = range.id = `s-${name}`;
    range.type = "range";
    range.min = 0;
    range.max = stops ? stops.length - 1 : STEPS;
    range.dataset.slides = name;
    value.htmlFor = range.id;
    row.append(words, range, value);
    $("#sliders").append(row);
    range.addEventListener("input", () => {
      held = name;
      field(name).value = stops ? stops[range.value] : rounded(threshold(Number(range.value)));
      field(name).dispatchEvent(new Event("input", { bubbles: true }));
      held = null;
    });
  }

  function slide() {
    for (const [name, , stops] of SLIDERS) {
      const range = $(`#s-${name}`), text = field(name).value.trim() || field(name).placeholder, now = Number(text);
      const known = text !== "" && Number.isFinite(now);
      if (!stops && known && (!ends || now < ends[0] || now > ends[1])) ends = [Math.min(0, now * 2), Math.max(now * 2, 1e-9)];
      range.disabled = !stops && !ends;
      if (known && held !== name) range.value = stops ? stops.reduce((best, stop, i) => (Math.abs(stop - now) < Math.abs(stops[best] - now) ? i : best), 0) : ((now - ends[0]) / (ends[1] - ends[0])) * STEPS;
      const shown = !known ? text : stops === MS ? span(now) : stops ? number(now) : amount(now, unit());
      range.setAttribute("aria-valuetext", shown);
      set(range.nextElementSibling, shown);
    }
  }

  // trying it

  const part = (name) => $(`[data-${name}]`, section);
  const plot = window.console_chart.drawing(part("plot"), part("readout"), (chosen) => { zoom = chosen; begin(); });
  let soon = 0, busy = false, again = false, page = 1, zoom = null, anew = true;

  function later() {
    clearTimeout(soon);
    page = 1;
    soon = setTimeout(begin, 250);
  }

  async function begin() {
    again = true;
    if (busy) return;
    busy = true;
    while (again) {
      again = false;
      const body = new URLSearchParams([...new FormData(form)].filter(([, value]) => typeof value === "string"));
      if (zoom) { body.set("from", zoom[0]); body.set("to", zoom[1]); }
      body.set("page", page);
      if (anew) body.set("anew", "1");
      anew = false;
      section.setAttribute("aria-busy", "true");
      const got = await fetch(section.dataset.try, { method: "POST", body, headers: { "HX-Request": "true" } }).catch(() => null);
      section.removeAttribute("aria-busy");
      if (again) continue;
      if (got && got.ok) show(await got.json());
      else part("told").textContent = got && got.status === 401 ? "Your session is over; sign in again." : "The draft could not be tried; change it, or load the page again.";
    }
    busy = false;
  }

  function show(data) {
    part("told").textContent = window.console_page.local(data.told);
    const open = new Map($$("details[data-keep]", section).map((one) => [one.dataset.keep, one.open]));
    part("tried").innerHTML = data.html;
    for (const one of $$("details[data-keep]", section)) one.open = one.open || Boolean(open.get(one.dataset.keep));
    for (const one of $$("time[data-ms]", section)) one.textContent = window.console_page.absolute(Number(one.dataset.ms));
    part("all").hidden = !zoom;
    plot.show(data.chart);
    if (!data.chart) { window.console_chart.legend(part("legend"), []); return; }
    const { series, strips } = data.chart;
    const states = [...new Set(strips.flatMap((strip) => strip.bands.map(([state]) => state)))];
    window.console_chart.legend(part("legend"), [...series.map((one, i) => [i ? "value second" : one.dashed ? "value dashed" : "value", one.name]), ["threshold", "threshold"], ...states.map((state) => [state, state])]);
    const values = series.flatMap((one) => one.value).filter((one) => one !== null);
    if (values.length && !zoom) {
      const now = Number(field("threshold").value), all = Number.isFinite(now) ? [...values, now] : values;
      const least = Math.min(...all), most = Math.max(...all), room = Math.max(most - least, Math.abs(most), 1e-9) * 0.25;
      ends = [least >= 0 ? Math.max(0, least - room) : least - room, most + room];
      slide();
    }
  }

  // a threshold for it

  const hand = $("#suggest");
  hand.addEventListener("click", async () => {
    const told = part("suggested"), body = new URLSearchParams([...new FormData(form)].filter(([, value]) => typeof value === "string"));
    hand.disabled = true;
    told.textContent = "Looks at the recorded samples…";
    const got = await fetch(hand.dataset.suggest, { method: "POST", body, headers: { "HX-Request": "true" } }).catch(() => null);
    hand.disabled = false;
    if (!got || !got.ok) { told.textContent = got && got.status === 401 ? "Your session is over; sign in again." : "No threshold could be suggested now."; return; }
    const data = await got.json();
    told.textContent = window.console_page.local(data.told);
    if (data.threshold === null) return;
    field("threshold").value = String(data.threshold);
    field("threshold").dispatchEvent(new Event("input", { bubbles: true }));
  });

  section.addEventListener("click", (event) => {
    const turn = event.target.closest("[data-page]");
    if (turn) { page = Number(turn.dataset.page); begin(); }
  });
  part("all").addEventListener("click", () => { zoom = null; begin(); });
  document.addEventListener("input", (event) => {
    if (event.target.form !== form || event.target.dataset.slides) return;
    sent = false;
    tidy();
    later();
  });
  document.addEventListener("acted", () => setTimeout(later, 300));
  tidy();
  begin();
})();
