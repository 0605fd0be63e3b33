"use strict";
const content = JSON.parse(document.getElementById("content").textContent);
const page = document.getElementById("page");
const plots = [];
function node(name, attributes, ...inside) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
  made.append(...inside.filter(one => one !== null));
  return made;
}
const colour = name => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
const LATEST = 8.64e15; // the last time a Date can have
const time = ms => Math.abs(ms) > LATEST ? String(ms)
  : new Date(ms).toISOString().replace("T", " ").replace(/[.]000Z$|Z$/, "");
const number = x => x === null ? "-" : Math.abs(x) >= 1e6 || (x !== 0 && Math.abs(x) < 1e-3) ? x.toExponential(3)
  : String(+x.toPrecision(6));
function span(ms) {
  const parts = [["d", 86400000], ["h", 3600000], ["m", 60000], ["s", 1000]];
  const at = parts.findIndex(([, size]) => ms >= size);
  if (at < 0) return Math.round(ms) + " ms";
  const [unit, size] = parts[at], rest = parts[at + 1];
  const more = rest ? Math.floor((ms % size) / rest[1]) : 0;
  return Math.floor(ms / size) + unit + (more ? " " + more + rest[0] : "");
}
const several = (count, word) => `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;
function table(heads, rows) {
  return node("table", {}, node("tr", {}, ...heads.map(head => node("th", {}, head))),
    ...rows.map(row => node("tr", {}, ...row.map(cell => node("td", {}, String(cell))))));
}
const leftOut = (count, words) => count > 0 ? node("p", {class: "dim"}, `${count} more ${words} not shown.`) : null;

// ---------------------------------------------------------------- charts

const SPAN_LEAST = 20, STRIP = 6, STRETCHES = 600;
const running = steps => { let at = 0; return steps.map(step => at += step); };
/** Times, lowest, highest and value of the rule; a long silence between samples is a gap in the first two. */
function columns(rule) {
  const ends = running(rule.series[0]), [, low, high] = rule.series, all = rule.to - rule.from;
  const silence = 3 * Math.max(all / Math.max(1, rule.samples), all / STRETCHES), series = [[], [], []];
  ends.forEach((at, i) => {
    if (i && at - ends[i - 1] > silence) [ends[i - 1] + 1, null, null].forEach((one, row) => series[row].push(one));
    [at, low[i], high[i]].forEach((one, row) => series[row].push(one));
  });
  return uPlot.join([series, [running(rule.value[0]), rule.value[1]]]);
}
/** Labels of times, UTC: as fine as their distance asks for, the day below where it changes. */
function instants(plot, splits, axis, space, step) {
  let day = null;
  return splits.map(at => {
    const [date, clock] = time(Math.round(at)).split(" ");
    if (step >= 31536e6 / 2) return date.slice(0, 4);
    if (step >= 864e5) return date;
    const fresh = date !== day;
    day = date;
    return clock.slice(0, step >= 6e4 ? 5 : 12) + (fresh ? "\n" + date : "");
  });
}
function drawStays(plot, rule) {
  const {ctx, bbox, scales} = plot, px = devicePixelRatio, x = ms => plot.valToPos(ms, "x", true);
  for (const word of ["open", "half_open"]) for (const [state, from, to, rate] of rule.stays) {
    if (state !== word || to < scales.x.min || from > scales.x.max) continue;
    const left = x(from), wide = Math.max(px / 2, x(to) - left), part = word === "open" ? 1 : rate;
    ctx.fillStyle = colour(word === "open" ? "open" : "half");
    ctx.globalAlpha = word === "open" ? .22 : .3;
    ctx.fillRect(left, bbox.top + bbox.height * (1 - part), wide, bbox.height * part);
    ctx.globalAlpha = 1;
    ctx.fillRect(left, bbox.top, Math.max(2 * px, wide), STRIP * px);
  }
}
function drawWindows(plot, rule) {
  const {ctx, bbox, scales} = plot, px = devicePixelRatio, x = ms => plot.valToPos(ms, "x", true);
  ctx.fillStyle = ctx.strokeStyle = colour("label");
  ctx.lineWidth = px;
  for (const [from, to, first] of rule.windows) {
    if (to < scales.x.min || from > scales.x.max) continue;
    const box = [x(from), bbox.top + bbox.height - STRIP * px, Math.max(2 * px, x(to) - x(from)), STRIP * px];
    if (first === null) ctx.strokeRect(...box); else ctx.fillRect(...box);
  }
}
function dashed(plot, colourName, from, to, words, [wordsX, wordsY], baseline = "bottom") {
  const {ctx} = plot, px = devicePixelRatio;
  ctx.strokeStyle = ctx.fillStyle = colour(colourName);
  ctx.lineWidth = px;
  ctx.setLineDash([5 * px, 3 * px]);
  ctx.beginPath(); ctx.moveTo(...from); ctx.lineTo(...to); ctx.stroke();
  ctx.setLineDash([]);
  ctx.font = `${11 * px}px system-ui, sans-serif`;
  ctx.textAlign = "left"; ctx.textBaseline = baseline;
  if (words) ctx.fillText(words, wordsX, wordsY);
}
function drawLines(plot, rule, chosen, hasThreshold) {
  const {bbox} = plot, px = devicePixelRatio, x = ms => plot.valToPos(ms, "x", true);
  const right = bbox.left + bbox.width, bottom = bbox.top + bbox.height;
  if (hasThreshold) {
    const y = plot.valToPos(rule.threshold, "y", true), high = y - bbox.top < (STRIP + 14) * px;
    dashed(plot, "limit", [bbox.left, y], [right, y], `threshold ${number(rule.threshold)}`,
      [bbox.left + 4 * px, y + (high ? 3 : -2) * px], high ? "top" : "bottom");
  }
  if (!chosen) return;
  const line = (at, words, row) => dashed(plot, "fg", [x(at), bbox.top], [x(at), bottom], words,
    [x(at) + 4 * px, bbox.top + (STRIP + 14 * row) * px], "bottom");
  if (chosen.trip !== null && rule.window_ms) {
    const from = chosen.trip - rule.window_ms;
    plot.ctx.fillStyle = colour("value"); plot.ctx.globalAlpha = .08;
    plot.ctx.fillRect(x(from), bbox.top, x(chosen.trip) - x(from), bbox.height);
    plot.ctx.globalAlpha = 1;
    line(from, `window ${span(rule.window_ms)}`, 1);
  }
  if (chosen.trip !== null) line(chosen.trip, "trip", 2);
  if (chosen.from !== chosen.trip) line(chosen.from, "failure", 3);
  line(chosen.to, chosen.words, 3);
}
function within(plot, paint) {
  const {ctx, bbox} = plot;
  ctx.save(); ctx.beginPath(); ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height); ctx.clip();
  paint(); ctx.restore();
}
/** The chart of a rule: `show(from, to, chosen)` zooms it; the panels of it have one range of time. */
function chart(rule) {
  const whole = [rule.from, Math.max(rule.to, rule.from + 1)], data = columns(rule), key = `panels ${plots.length}`;
  const range = node("output", {class: "dim", "aria-live": "polite"}), tip = node("p", {class: "tip dim"}, "\u00a0");
  const bar = node("div", {class: "bar"});
  const box = node("div", {class: "chart", tabindex: 0, role: "group",
    "aria-label": `Chart of ${rule.name}: arrows move, plus and minus zoom, 0 shows all`}, bar);
  let chosen = null, shown = whole;
  const panels = [];
  function show(from, to, marked) {
    let wide = Math.min(whole[1] - whole[0], Math.max(SPAN_LEAST, to - from));
    from = Math.min(Math.max(from - Math.max(0, wide - (to - from)) / 2, whole[0]), whole[1] - wide);
    if (marked !== undefined) chosen = marked;
    for (const panel of panels) panel.setScale("x", {min: from, max: from + wide});
    for (const panel of panels) panel.redraw(false);
  }
  const all = () => { show(...whole, null); box.dispatchEvent(new Event("whole")); };
  function move(by, times, at = .5) {
    const wide = shown[1] - shown[0], from = shown[0] + wide * by + wide * at * (1 - times);
    show(from, from + wide * times);
  }
  function scaled(plot, name) {
    if (name !== "x") return;
    const {min, max} = plot.scales.x;
    if (shown[0] === min && shown[1] === max && box.dataset.from) return;
    shown = [min, max];
    box.dataset.from = min; box.dataset.to = max;
    range.textContent = `${time(Math.round(min)).slice(0, 19)} to ${time(Math.round(max)).slice(0, 19)} UTC (${span(max - min)})`;
    for (const other of panels) if (other !== plot) other.setScale("x", {min, max});
  }
  function follow(plot) {
    const {left, idx} = plot.cursor;
    if (left < 0 || idx === null || idx === undefined) return;
    const at = plot.posToVal(left, "x"), stay = rule.stays.find(([, from, to]) => from <= at && at <= to);
    const near = row => { let i = idx; while (i > 0 && data[row][i] === undefined) i--; return data[row][i] ?? null; };
    tip.textContent = `${time(Math.round(at))}: samples ${number(near(1))} to ${number(near(2))}, value ${number(near(3))}` +
      (stay ? `, ${stay[0]}, allow_rate ${stay[3]}` : "");
  }
  const line = (name, width) => ({stroke: () => colour(name), width, points: {show: plot => {
    const [from, to] = plot.series[0].idxs ?? [0, 0];
    return to - from < 60;
  }, size: 4, stroke: () => colour(name), fill: () => colour(name)}});
  function panel(height, rows, hasThreshold, last) {
    const axis = more => ({stroke: () => colour("dim"), grid: {stroke: () => colour("line"), width: 1},
      ticks: {stroke: () => colour("line"), width: 1}, ...more});
    const reach = (plot, low, high) => {
      const ends = [low, high, hasThreshold ? rule.threshold : null].filter(one => one !== null && one !== undefined);
      if (!ends.length) return [0, 1];
      const bottom = Math.min(...ends), top = Math.max(...ends), pad = (top - bottom) * .08 || Math.abs(top) * .1 || 1;
      return [bottom - pad, top + pad];
    };
    const made = new uPlot({
      width: 600, height, ms: 1, tzDate: ms => uPlot.tzDate(new Date(ms), "Etc/UTC"), legend: {show: false}, padding: [8, 12, 0, 0],
      cursor: {y: false, drag: {x: true, y: false, dist: 4}, sync: {key, setSeries: false}, points: {show: false},
        bind: {dblclick: () => () => all(), mousedown: (plot, over, start) => event => event.shiftKey ? null : start(event)}},
      scales: {x: {time: true, range: (plot, min, max) => [min ?? whole[0], max ?? whole[1]]}, y: {range: reach}},
      series: [{}, ...rows.map(row => row === 3 ? line("value", 1.6) : line("series", 1))],
      bands: rows.includes(1) ? [{series: [2, 1], fill: () => colour("series") + "55"}] : [],
      axes: [axis({values: instants, space: 80, size: last ? 44 : 8, ...(last ? {} : {values: () => []})}),
        axis({size: 62, values: (plot, splits) => splits.map(number), space: 36})],
      hooks: {
        drawClear: [plot => within(plot, () => drawStays(plot, rule))],
        draw: [plot => within(plot, () => { drawWindows(plot, rule); drawLines(plot, rule, chosen, hasThreshold); })],
        setScale: [scaled], setCursor: [follow],
      },
    }, [data[0], ...rows.map(row => data[row])], box);
    drag(made);
    panels.push(made);
    plots.push(made);
  }
  /** Moves with a finger, or with the Shift key and a pointer; the wheel zooms with Ctrl, moves sideways. */
  function drag(plot) {
    const wide = () => plot.over.getBoundingClientRect().width;
    let before = null;
    plot.over.addEventListener("pointerdown", event => {
      if (event.pointerType !== "touch" && !event.shiftKey) return;
      before = event.clientX;
      plot.over.setPointerCapture(event.pointerId);
    });
    plot.over.addEventListener("pointermove", event => {
      if (before === null) return;
      move((before - event.clientX) / wide(), 1);
      before = event.clientX;
    });
    for (const end of ["pointerup", "pointercancel"]) plot.over.addEventListener(end, () => { before = null; });
    plot.over.addEventListener("wheel", event => {
      const side = event.shiftKey && !event.deltaX ? event.deltaY : event.deltaX;
      if (!event.ctrlKey && Math.abs(side) <= (event.shiftKey ? 0 : Math.abs(event.deltaY))) return;
      event.preventDefault();
      const at = (event.clientX - plot.over.getBoundingClientRect().left) / wide();
      if (event.ctrlKey) move(0, Math.exp(Math.sign(event.deltaY) * .2), at); else move(side / wide(), 1);
    }, {passive: false});
  }
  if (rule.value_is_series) panel(300, [1, 2, 3], true, true);
  else { panel(170, [1, 2], false, false); panel(200, [3], true, true); }
  const acts = {ArrowLeft: () => move(-.25, 1), ArrowRight: () => move(.25, 1), "+": () => move(0, .5), "-": () => move(0, 2), 0: all};
  acts["="] = acts["+"]; acts.Escape = all;
  box.addEventListener("keydown", event => {
    if (event.ctrlKey || event.altKey || event.metaKey || !Object.hasOwn(acts, event.key)) return;
    event.preventDefault();
    acts[event.key]();
  });
  for (const [act, sign, words] of [["ArrowLeft", "\u2190", "earlier"], ["ArrowRight", "\u2192", "later"], ["+", "+", "zoom in"],
    ["-", "\u2212", "zoom out"], ["0", "all", "show all"]]) {
    const button = node("button", {type: "button", title: words, "aria-label": words}, sign);
    button.addEventListener("click", acts[act]);
    bar.append(button);
  }
  bar.append(range);
  box.append(tip);
  show(...whole, null);
  new ResizeObserver(() => {
    const width = Math.floor(box.clientWidth);
    if (width) for (const one of panels) if (one.width !== width) one.setSize({width, height: one.height});
  }).observe(box);
  return {box, show};
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => plots.forEach(plot => plot.redraw()));

// ---------------------------------------------------------------- a rule

function key(windows) {
  const mark = (name, words) => node("b", {}, node("span", {style: `background:var(--${name})`}), words);
  return node("p", {class: "key dim"}, mark("series", "samples, lowest to highest"), mark("value", "value of the rule"),
    mark("limit", "threshold"), mark("open", "open"), mark("half", "half_open, as high as its allow_rate"),
    windows ? mark("label", "labelled failure, hollow if missed") : null);
}
/** A table whose rows zoom the chart: [cells, from and to of the view, what is marked] each; no view: nothing to show. */
function spans(heads, rows, view) {
  const made = rows.map(([cells, from, to, chosen], i) => {
    const first = from === null ? String(i + 1) : node("button", {type: "button", "aria-label": `show ${heads[0]} ${i + 1}`}, String(i + 1));
    const row = node("tr", {class: from === null ? "" : "span"}, node("td", {}, first), ...cells.map(cell => node("td", {}, cell)));
    if (from !== null) row.addEventListener("click", () => {
      view.show(from, to, chosen);
      view.box.dispatchEvent(new CustomEvent("chosen", {detail: row}));
      view.box.scrollIntoView({block: "nearest"});
    });
    return row;
  });
  view.box.addEventListener("chosen", event => made.forEach(row => row.classList.toggle("chosen", row === event.detail)));
  view.box.addEventListener("whole", () => made.forEach(row => row.classList.remove("chosen")));
  return node("div", {class: "scroll spans"}, node("table", {}, node("tr", {}, ...heads.map(head => node("th", {}, head))), ...made));
}
function incidents(rule, view) {
  const rows = rule.incidents.map(([from, to, over, trips, open, caught, viewFrom, viewTo]) => [
    [time(from), over ? span(to - from) : `${span(to - from)}, not over`, String(trips - 1), span(open),
      ...(rule.false_trips === null ? [] : [caught ? "yes" : "no"])],
    viewFrom, viewTo, {from, trip: from, to, words: over ? "closed" : "end of the samples"}]);
  const heads = ["incident", "first trip (UTC)", "lasted", "re-trips", "open", ...(rule.false_trips === null ? [] : ["labelled"])];
  return rows.length ? [spans(heads, rows, view), leftOut(rule.incidents_in_all - rows.length, "incidents")] : [];
}
function failures(rule, view) {
  const rows = rule.windows.map(([from, to, first, viewFrom, viewTo, judged]) => [
    [time(from), span(to - from), first === null ? judged ? "missed" : "no samples"
      : first < from ? `at once, open since ${time(first)}` : "after " + span(first - from)],
    judged ? viewFrom : null, viewTo, {from, trip: first, to, words: "end of the failure"}]);
  return rows.length ? [spans(["failure", "labelled from (UTC)", "lasts", "caught"], rows, view),
    leftOut(rule.windows_in_all - rows.length, "labelled failures")] : [];
}
function told(rule) {
  const all = rule.to - rule.from || 1, again = rule.trips - rule.incidents_in_all;
  const share = state => `${state} ${(100 * rule.time_in[state] / all).toFixed(2)} % (${span(rule.time_in[state])})`;
  return `${rule.samples.toLocaleString("en")} samples of ${content.title}, ${time(rule.from)} to ${time(rule.to)} UTC; ` +
    ["closed", "half_open", "open"].map(share).join(", ") + `; ${several(rule.incidents_in_all, "incident")}, ` +
    `${several(rule.trips, "trip")} (${several(again, "re-trip")})` +
    (rule.shown === null ? "" : `; callers saw ${several(rule.shown[0], "trip")}, open for ${span(rule.shown[1])}`) + (rule.false_trips === null ? "" :
      `, ${several(rule.false_trips, "false trip")}; ${rule.windows_caught} of ${rule.windows_judged} labelled failures caught`);
}
for (const rule of content.rules) {
  page.append(node("h2", {}, rule.name), node("p", {}, rule.rule), node("p", {class: "dim"}, told(rule)));
  const place = node("div");
  page.append(place);
  const view = chart(rule);
  place.append(view.box, key(rule.windows.length));
  page.append(...[...failures(rule, view), ...incidents(rule, view)].filter(Boolean));
  const rows = rule.moves.map(([at, prev, curr, seq, reason, rate, value]) =>
    [seq, time(at), `${prev} \u2192 ${curr}`, reason, rate, number(value)]);
  const heads = ["#", "time (UTC)", "move", "reason", "allow_rate", "value"];
  page.append(rows.length ? node("details", {}, node("summary", {}, several(rows.length + rule.moves_left_out, "transition")),
    node("div", {class: "scroll"}, table(heads, rows)), leftOut(rule.moves_left_out, "transitions")) : node("p", {}, "No transition."));
}
if (content.left_out) page.append(leftOut(content.left_out, "rules"));

// ---------------------------------------------------------------- sweep

const SPENT = ["closed_ms", "half_open_ms", "open_ms", "latency_ms"];
const shown = (name, value) => value === null ? "-" : name.endsWith("_ms") ? span(value) : String(value);
const headed = name => SPENT.includes(name) ? name.slice(0, -3) : name;
/** A cell's colour: grey where not all are caught, the redder the more false trips beyond the fewest. Time until they are
 caught goes from soon to late between those that no other one beats: they tie. */
function colours(sweep, rows) {
  return sweep.judged ? judgedColours(rows) : countedColours(rows);
}
/** Where no failure is labelled nothing says which setting is right: grey never trips, the others go from few to many. */
function countedColours(rows) {
  const counts = rows.map(row => row.trips).filter(count => count > 0);
  const fewest = Math.min(...counts), most = Math.max(...counts);
  const share = row => most > fewest ? Math.log(row.trips / fewest) / Math.log(most / fewest) : 0;
  const of = row => row.trips ? mixed("var(--late)", share(row), "var(--soon)") : "var(--miss)";
  const marks = [["miss", "never trips"], counts.length ? ["soon", `fewest trips (${fewest})`] : null,
    most > fewest ? ["late", `most trips (${most})`] : null];
  return {of, marks: marks.filter(Boolean)};
}
const mixed = (one, share, other) => `color-mix(in srgb, ${one} ${Math.round(share * 100)}%, ${other})`;
function judgedColours(rows) {
  const bad = row => row.false_trips, full = row => row.caught === row.windows;
  const most = Math.max(0, ...rows.filter(full).map(bad));
  const timed = rows.filter(row => full(row) && Number.isFinite(row.latency_ms)), fewest = Math.min(...timed.map(bad));
  const times = timed.filter(row => bad(row) === fewest).map(row => row.latency_ms);
  const soon = Math.min(...times), late = Math.max(...times), least = Number.isFinite(fewest) ? fewest : Math.min(...rows.map(bad));
  const badness = row => most > least ? Math.max(0, Math.log1p(bad(row) - least) / Math.log1p(most - least)) : 0;
  const lateness = row => !(late > soon) || !Number.isFinite(row.latency_ms) ? 0
    : Math.min(1, Math.max(0, Math.log((row.latency_ms + 1) / (soon + 1)) / Math.log((late + 1) / (soon + 1))));
  const of = row => !full(row) ? "var(--miss)"
    : mixed("var(--bad)", badness(row), mixed("var(--late)", lateness(row), "var(--soon)"));
  const marks = [Number.isFinite(soon) ? ["soon", `all caught, fewest false trips (${least}), soonest (${span(soon)})`] : null,
    late > soon ? ["late", `the same, latest (${span(late)})`] : null,
    most > least ? ["bad", `all caught, most false trips (${most})`] : null, ["miss", "not all caught"]];
  return {of, marks: marks.filter(Boolean)};
}
function heat(sweep, rows, detail) {
  const distinct = field => [...new Set(rows.map(row => row[field]))].sort((a, b) => a > b ? 1 : a < b ? -1 : 0);
  const wide = sweep.fields.filter(field => distinct(field).length > 1);
  const [down, across] = [wide[0] ?? sweep.fields[0], wide[1] ?? null], paint = colours(sweep, rows);
  const heads = across === null ? [null] : distinct(across), buttons = [];
  const cell = (d, a) => {
    const same = rows.filter(row => row[down] === d && (across === null || row[across] === a)); // the best first
    if (!same.length) return node("td", {}, "");
    const row = same[0], words = sweep.judged ? `${row.caught} / ${row.false_trips}` : String(row.trips);
    const button = node("button", {type: "button", style: `background:${paint.of(row)}`, "aria-pressed": "false"}, words,
      sweep.judged ? node("small", {}, row.latency_ms === null ? "-" : span(row.latency_ms)) : null);
    button.addEventListener("click", () => {
      for (const one of buttons) one.setAttribute("aria-pressed", String(one === button));
      const names = sweep.names.filter(name => name !== "breaker"), few = same.slice(0, 20);
      detail.replaceChildren(few.length === 1
        ? table(["setting", ""], names.map(name => [headed(name), shown(name, row[name])]))
        : table(names.map(headed), few.map(one => names.map(name => shown(name, one[name])))));
      const more = leftOut(same.length - few.length, "settings");
      if (more) detail.append(more);
    });
    buttons.push(button);
    return node("td", {}, button);
  };
  const made = node("table", {class: "map"}, node("tr", {}, node("th", {}, across === null ? down : `${down} \\ ${across}`),
    ...heads.map(a => node("th", {}, a === null ? "" : shown(across, a)))), ...distinct(down).map(d =>
    node("tr", {}, node("th", {}, shown(down, d)), ...heads.map(a => cell(d, a)))));
  const mark = (name, words) => node("b", {}, node("span", {style: `background:var(--${name})`}), words);
  const told = node("p", {class: "key dim"}, ...paint.marks.map(([name, words]) => mark(name, words)));
  return [told, node("div", {class: "scroll", style: "max-height:none"}, made)];
}
if (content.sweep) {
  const sweep = content.sweep, all = sweep.rows.map(row => Object.fromEntries(sweep.names.map((name, i) => [name, row[i]])));
  page.append(node("h2", {}, "Sweep"), node("p", {class: "dim"}, (sweep.judged ?
    "Each cell: labelled failures caught / false trips, and the mean time until they were caught. " : "Each cell: trips. ") +
    "A click shows all numbers of a setting." + (sweep.fields.length > 2 ? " The best over the other fields is shown." : "")));
  for (const name of new Set(all.map(row => row.breaker))) {
    if (name !== undefined) page.append(node("h3", {}, name));
    const detail = node("div", {class: "scroll detail", "aria-live": "polite"});
    page.append(...heat(sweep, all.filter(row => row.breaker === name), detail), detail);
  }
  if (sweep.left_out) page.append(leftOut(sweep.left_out, "settings"));
  const names = [...sweep.fields, "caught", "false_trips", "latency_ms", "trips", "open_ms"].filter(name => sweep.names.includes(name));
  for (const name of new Set(all.map(row => row.breaker))) {
    const mine = all.filter(row => row.breaker === name), rows = mine.slice(0, 200).map(row => names.map(one => shown(one, row[one])));
    const words = `${several(mine.length, "setting")}${name === undefined ? "" : ` of ${name}`}, the best first`;
    page.append(node("details", {}, node("summary", {}, words), node("div", {class: "scroll"}, table(names.map(headed), rows)),
      leftOut(mine.length - rows.length, "settings")));
  }
}
