// What the console's pages do beside htmx: times in the reader's words, the live part, search, keys, theme.
"use strict";
(() => {
  const $ = (selector, from = document) => from.querySelector(selector);
  const $$ = (selector, from = document) => [...from.querySelectorAll(selector)];
  const root = document.documentElement;

  // times: UTC from the server; here as the reader wants them

  // A browser whose clock is off would tell of probes that are long due.
  const ahead = Date.now() - Number(document.body.dataset.now);
  const clock = () => Date.now() - (Math.abs(ahead) > 5000 ? ahead : 0);
  const utc = () => localStorage.getItem("zone") === "utc";
  const pad = (n) => String(n).padStart(2, "0");

  function absolute(ms) {
    const at = new Date(ms);
    if (utc()) return at.toISOString().slice(0, 19).replace("T", " ") + " UTC";
    return `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())} ${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}`;
  }

  function span(ms) {
    const units = [[86400e3, "d"], [3600e3, "h"], [60e3, "min"], [1e3, "s"]];
    let left = Math.round(ms / 1e3) * 1e3;
    const parts = [];
    for (const [size, unit] of units) {
      const n = Math.floor(left / size);
      if (n && parts.length < 2) { parts.push(`${n} ${unit}`); left -= n * size; } else if (parts.length) break;
    }
    return parts.join(" ") || "0 s";
  }

  function tellTimes(from = document) {
    const now = clock();
    for (const time of $$("time[data-ms]", from)) {
      const { every, next } = time.dataset;
      // what comes again on a grid may have come since: the last of those gone by, or the next of those to come
      const turns = every && now >= next ? Math.floor((now - next) / every) + ("ahead" in time.dataset ? 1 : 0) : null;
      const ms = turns === null ? Number(time.dataset.ms) : Number(next) + turns * every;
      const text = "lasting" in time.dataset ? span(Math.max(0, now - ms)) : "ahead" in time.dataset ? (ms > now ? `in ${span(ms - now)}` : "now") : "relative" in time.dataset ? (ms <= now ? `${span(now - ms)} ago` : `in ${span(ms - now)}`) : absolute(ms);
      if (time.textContent !== text) time.textContent = text;
      time.title = `${absolute(ms)} · ${new Date(ms).toISOString()}`;
    }
  }

  // a switch: what is so now on it, what a press will do in its name

  function button(id, labels, now, next) {
    const found = document.getElementById(id);
    if (!found) return;
    const show = () => {
      const [words, will] = labels[now()];
      found.textContent = words;
      found.title = will;
      found.setAttribute("aria-label", `${words}. ${will}`);
    };
    found.addEventListener("click", () => { next(); show(); });
    show();
  }

  button("zone", { local: ["Times: local", "Show times in UTC"], utc: ["Times: UTC", "Show times in your own zone"] }, () => (utc() ? "utc" : "local"), () => {
    localStorage.setItem("zone", utc() ? "local" : "utc");
    tellTimes();
  });
  const themes = ["system", "light", "dark"];
  const theme = () => (themes.includes(localStorage.getItem("theme")) ? localStorage.getItem("theme") : "system");
  button("theme", { system: ["Theme: system", "Change to light"], light: ["Theme: light", "Change to dark"], dark: ["Theme: dark", "Follow the system"] }, theme, () => {
    localStorage.setItem("theme", themes[(themes.indexOf(theme()) + 1) % themes.length]);
    if (theme() === "system") delete root.dataset.theme; else root.dataset.theme = theme();
    document.dispatchEvent(new Event("console:theme"));
  });

  // on a narrow screen the menu is folded; it closes with Escape, too

  const menu = $("#menu");
  const unfold = (open) => {
    menu.setAttribute("aria-expanded", String(open));
    root.toggleAttribute("data-menu", open);
  };
  menu.addEventListener("click", () => unfold(menu.getAttribute("aria-expanded") === "false"));
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !("menu" in root.dataset)) return;
    unfold(false);
    menu.focus();
  });

  // the door: what stands behind the # of a one-time link

  const enter = $("#enter");
  if (enter && location.hash.length > 1 && !("stay" in enter.dataset)) {
    $("#link").value = location.hash.slice(1);
    history.replaceState(null, "", location.pathname);
    enter.requestSubmit();
  }

  // the live part

  const live = () => $("#live");
  const told = $("#live-state");
  const pause = $("#pause");
  let source = null, listened = "", paused = false, gone = false, wanted = false, busy = false, last = 0, relisten = 0, stale = false, retry = 0;

  function tell(text, kind) {
    if (told) { told.textContent = text; told.dataset.kind = kind; }
  }

  // What could not be fetched is old: the page says so, and tries again while somebody looks at it.
  function failed(status) {
    stale = true;
    if (paused) return;
    const gone = status === 403 || status === 404;
    tell(gone ? "No longer there" : "Can't refresh, trying again", "lost");
    clearTimeout(retry);
    if (!gone && !document.hidden) retry = setTimeout(refresh, 3000);
  }

  function fresh() {
    if (stale && source && source.readyState === EventSource.OPEN) tell("Live", "on");
    stale = false;
  }

  async function refresh() {
    wanted = true;
    if (busy || !live()) return;
    busy = true;
    while (wanted) {
      await new Promise((done) => setTimeout(done, Math.max(0, last + 200 - performance.now())));
      wanted = false;
      last = performance.now();
      const got = await fetch(location.pathname + location.search, { headers: { "HX-Request": "true" } }).catch(() => null);
      if (got && got.status === 401) { location.assign(`/console/sign-in?why=ended&to=${encodeURIComponent(location.pathname + location.search)}`); return; }
      if (got && got.ok) { await show(await got.text()); fresh(); } else failed(got ? got.status : 0);
    }
    busy = false;
  }

  async function show(text) {
    const now = live();
    if (!now || !text.includes('id="live"')) return;
    await htmx.swap({ target: now, sourceElement: now, swap: "outerMorph", text });
    tellTimes();
    document.dispatchEvent(new Event("console:shown"));
    relistenSoon();
  }

  function address() {
    const now = live();
    return now && now.dataset.live ? `${now.dataset.live}?ids=${now.dataset.ids || ""}` : "";
  }

  function listen() {
    hush();
    listened = address();
    if (!listened || paused || gone || document.hidden) return;
    source = new EventSource(listened);
    // What changed since the page was made, or while another stream was begun, is no news of this one.
    source.addEventListener("on", () => { if (!stale) tell("Live", "on"); refresh(); });
    source.addEventListener("over", () => location.assign(`/console/sign-in?why=ended&to=${encodeURIComponent(location.pathname + location.search)}`));
    source.addEventListener("gone", () => { gone = true; hush(); failed(404); });
    source.addEventListener("news", (event) => {
      document.dispatchEvent(new CustomEvent("console:news", { detail: JSON.parse(event.data) }));
      refresh();
    });
    source.addEventListener("error", () => {
      tell("Connection lost, trying again", "lost");
      if (source && source.readyState === EventSource.CLOSED) setTimeout(() => { listen(); refresh(); }, 3000);
    });
  }

  function hush() {
    if (source) source.close();
    source = null;
  }

  function relistenSoon() {
    if (!relisten && address() !== listened) relisten = setTimeout(() => { relisten = 0; if (address() !== listened) listen(); }, 5000);
  }

  if (pause) pause.addEventListener("click", () => {
    paused = !paused;
    pause.toggleAttribute("data-paused", paused);
    pause.firstElementChild.textContent = paused ? "Resume" : "Pause";
    if (paused) { hush(); tell("Paused", "paused"); } else { listen(); refresh(); }
  });
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) hush(); else if (!paused && live()) { listen(); refresh(); }
  });
  document.addEventListener("acted", refresh);

  // What a second click hits may have come into the first one's place meanwhile: so soon after an act it is none.
  let acted = -Infinity;
  document.addEventListener("htmx:after:swap", (event) => { if (event.detail.ctx?.target?.id === "notice") acted = performance.now(); });
  document.addEventListener("click", (event) => {
    if (event.isTrusted && performance.now() - acted < 600 && event.target.closest(":is(form[hx-post] button:not([type='button']), [data-dialog]):not(#notice *)")) { event.preventDefault(); event.stopPropagation(); }
  }, true);

  // search: as its reader types

  const filter = $("form[data-filter]");
  if (filter) {
    let soon = 0;
    const search = () => {
      const asked = new URLSearchParams([...new FormData(filter)].filter(([, value]) => value));
      history.replaceState(null, "", location.pathname + (asked.size ? `?${asked}` : ""));
      refresh();
    };
    filter.addEventListener("input", () => { clearTimeout(soon); soon = setTimeout(search, 120); });
    filter.addEventListener("submit", (event) => { event.preventDefault(); search(); });
  }

  document.addEventListener("keydown", (event) => {
    if (event.target.closest("input, select, textarea, [contenteditable]") || event.metaKey || event.ctrlKey || event.altKey) return;
    if (event.key === "/" && $("[data-search]")) { event.preventDefault(); $("[data-search]").focus(); }
    if (event.key === "p" && pause) pause.click();
  });

  // what is copied, what is confirmed

  document.addEventListener("click", async (event) => {
    const copy = event.target.closest("[data-copy]");
    if (copy) {
      const text = $(copy.dataset.copy);
      // Browsers have a clipboard where the page came over TLS or from this machine; elsewhere it is selected.
      const copied = await (navigator.clipboard ? navigator.clipboard.writeText(text.textContent).then(() => true, () => false) : false);
      if (!copied) getSelection().selectAllChildren(text);
      copy.textContent = copied ? "Copied" : "Press Ctrl+C";
      setTimeout(() => { copy.textContent = "Copy"; }, 2000);
    }
    const opener = event.target.closest("[data-dialog]");
    if (opener) $(opener.dataset.dialog).showModal();
    if (event.target.closest("[data-close]")) event.target.closest("dialog").close();
  });
  document.addEventListener("acted", () => { for (const open of $$("dialog[open]")) open.close(); });
  const notice = $("#notice");
  if (notice) new MutationObserver(() => { if (notice.firstElementChild) notice.scrollIntoView({ block: "nearest" }); }).observe(notice, { childList: true });

  const local = (text) => text.replace(/\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC/g, (at) => absolute(Date.parse(`${at.slice(0, 10)}T${at.slice(11, 19)}Z`)));
  window.console_page = { refresh, local, absolute, span, utc, clock, tellTimes };
  tellTimes();
  setInterval(tellTimes, 1000);
  if (live()) listen();
})();
