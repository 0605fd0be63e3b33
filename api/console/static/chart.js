// Charts of the console: a value over time, its threshold, and states as patterned bands behind it.
"use strict";
(() => {
  const root = document.documentElement;
  const css = (name) => getComputedStyle(root).getPropertyValue(`--${name}`).trim();
  const make = (name, text = "", attributes = {}) => {
    const made = document.createElement(name);
    made.textContent = text;
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
  };
  // as the server writes figures: whole ones in full, others with four digits that count, thousands apart
  const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 }), digits = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });
  const figure = (x) => (Number.isInteger(x) || Math.abs(x) >= 1e4 ? whole : digits).format(x);
  const number = (x) => x === null || x === undefined ? "–" : Math.abs(x) >= 1e15 || (x !== 0 && Math.abs(x) < 1e-3) ? x.toExponential(3) : figure(x);
  // a value as it is shown: rates are percent
  const amount = (x, of) => x === null || x === undefined ? "–" : number(x * (of.times || 1)) + (of.unit || "");
  const span = (ms) => (ms && ms < 1000 ? `${Math.round(ms)} ms` : window.console_page.span(ms));
  const time = (ms) => window.console_page.absolute(ms);
  const COLOURS = { open: "open", half_open: "half", closed: "closed" };

  // A pattern per state, so that it is told without colour, too: open is hatched, half_open dotted, closed plain.
  function pattern(context, state, ratio) {
    const size = Math.round(8 * ratio), tile = document.createElement("canvas");
    tile.width = tile.height = size;
    const ink = tile.getContext("2d");
    ink.fillStyle = css(`${COLOURS[state]}-soft`);
    ink.fillRect(0, 0, size, size);
    ink.strokeStyle = ink.fillStyle = css(COLOURS[state]);
    ink.globalAlpha = 0.55;
    ink.lineWidth = ratio;
    if (state === "open") {
      ink.beginPath();
      for (const shift of [-size, 0, size]) { ink.moveTo(shift, size); ink.lineTo(shift + size, 0); }
      ink.stroke();
    } else if (state === "half_open") {
      ink.beginPath();
      ink.arc(size / 2, size / 2, 1.2 * ratio, 0, 7);
      ink.fill();
    }
    return context.createPattern(tile, "repeat");
  }

  // The states of one strip into a canvas, from `left` on, as wide as the plot.
  function drawBands(plot, strip, { ctx, left: begin, top, high }) {
    const { bbox } = plot, ratio = devicePixelRatio || 1, end = begin + bbox.width;
    const patterns = Object.fromEntries(Object.keys(COLOURS).map((state) => [state, pattern(ctx, state, ratio)]));
    const place = (at) => plot.valToPos(at, "x", true) - bbox.left + begin;
    for (const [state, from, to] of strip.bands) {
      const left = Math.max(begin, place(from)), right = Math.min(end, place(to));
      if (right < begin || left > end) continue;
      const wide = Math.max(ratio, right - left);
      ctx.globalAlpha = state === "closed" ? 0.35 : 1;
      ctx.fillStyle = patterns[state];
      ctx.fillRect(left, top, wide, high);
      ctx.globalAlpha = 1;
      if (wide > 70 * ratio && state !== "closed") {
        ctx.font = `${11 * ratio}px system-ui, sans-serif`;
        ctx.textAlign = "left";
        ctx.textBaseline = "top";
        const word = state, text = ctx.measureText(word).width;
        if (text + 10 * ratio < wide) {
          ctx.fillStyle = css("card");
          ctx.fillRect(left + 3 * ratio, top + high - 17 * ratio, text + 6 * ratio, 15 * ratio);
          ctx.fillStyle = css(COLOURS[state]);
          ctx.fillText(word, left + 6 * ratio, top + high - 15 * ratio);
        }
      }
    }
  }

  // Where no samples could be taken: upright lines over the states, of which nobody knows there.
  function drawAway(plot, stretches) {
    const { ctx, bbox } = plot, ratio = devicePixelRatio || 1;
    for (const [from, to] of stretches) {
      const left = Math.max(bbox.left, plot.valToPos(from, "x", true)), right = Math.min(bbox.left + bbox.width, plot.valToPos(to, "x", true));
      if (right <= left) continue;
      ctx.fillStyle = css("card");
      ctx.fillRect(left, bbox.top, right - left, bbox.height);
      ctx.fillStyle = css("dim");
      ctx.globalAlpha = 0.45;
      for (let x = left; x < right; x += 5 * ratio) ctx.fillRect(x, bbox.top, ratio, bbox.height);
      ctx.globalAlpha = 1;
    }
  }

  // Lanes of states below the plot, as wide as it and with its times: several of them would hide each other behind it.
  function drawLanes(plot, box, strips) {
    const ratio = devicePixelRatio || 1, { bbox } = plot, high = 20;
    for (const old of box.querySelectorAll(".strip")) old.remove();
    for (const strip of strips) {
      const row = make("div", "", { class: "strip" }), name = make("span", strip.name), canvas = make("canvas", "", { "aria-hidden": "true" });
      name.style.width = `${bbox.left / ratio}px`;
      canvas.width = bbox.width;
      canvas.height = high * ratio;
      canvas.style.width = `${bbox.width / ratio}px`;
      canvas.style.height = `${high}px`;
      row.append(name, canvas);
      box.append(row);
      drawBands(plot, strip, { ctx: canvas.getContext("2d"), left: 0, top: 0, high: high * ratio });
    }
  }

  function drawThresholds(plot, lines, of) {
    const { ctx, bbox } = plot, ratio = devicePixelRatio || 1;
    for (const [words, value, dashes] of lines) {
      const y = plot.valToPos(value, "y", true);
      if (!(y >= bbox.top && y <= bbox.top + bbox.height)) continue;
      ctx.strokeStyle = css("text");
      ctx.lineWidth = 1.4 * ratio;
      ctx.setLineDash(dashes.map((one) => one * ratio));
      ctx.beginPath();
      ctx.moveTo(bbox.left, y);
      ctx.lineTo(bbox.left + bbox.width, y);
      ctx.stroke();
      ctx.setLineDash([]);
      ctx.font = `${11 * ratio}px system-ui, sans-serif`;
      ctx.textAlign = "right";
      ctx.textBaseline = "bottom";
      const word = `${words} ${amount(value, of)}`, text = ctx.measureText(word).width;
      ctx.fillStyle = css("card");
      ctx.globalAlpha = 0.85;
      ctx.fillRect(bbox.left + bbox.width - text - 8 * ratio, y - 15 * ratio, text + 6 * ratio, 14 * ratio);
      ctx.globalAlpha = 1;
      ctx.fillStyle = css("text");
      ctx.fillText(word, bbox.left + bbox.width - 5 * ratio, y - 2 * ratio);
    }
  }

  // The states outside of stretches of which nobody knows.
  const known = (bands, away) => away.reduce((left, [from, to]) => left.flatMap(([state, begin, end]) => [[state, begin, Math.min(end, from)], [state, Math.max(begin, to), end]].filter(([, a, b]) => a < b)), bands);

  // Values between holes: a line has no length there, so they get a point.
  function alone(column) {
    const told = [];
    column.forEach((one, i) => { if (one !== undefined) told.push(i); });
    const hole = (n) => n < 0 || n >= told.length || column[told[n]] === null;
    return told.filter((i, n) => column[i] !== null && hole(n - 1) && hole(n + 1));
  }

  function reach(lines) {
    return (plot, low, high) => {
      const all = [low, high, ...lines.map((line) => line[1])].filter((one) => one !== null && Number.isFinite(one));
      if (!all.length) return [0, 1];
      const least = Math.min(...all), most = Math.max(...all), room = (most - least || Math.abs(most) || 1) * 0.14;
      return [least >= 0 && least - room < 0 ? 0 : least - room, most + room];
    };
  }

  // `data`: from, to, series [{name, at, value, dashed}], lines [[words, value, dashes]], strips [{name, bands}].
  // `zoomed` is called with a span that was chosen, or without one for all.
  function draw(box, data, readout, zoomed) {
    const times = [...new Set(data.series.flatMap((one) => one.at))].sort((a, b) => a - b);
    if (!times.length) times.push(data.from, data.to);
    const places = new Map(times.map((at, i) => [at, i]));
    const columns = data.series.map((one) => {
      const column = new Array(times.length).fill(data.series.length > 1 ? undefined : null);
      one.at.forEach((at, i) => { column[places.get(at)] = one.value[i]; });
      return column;
    });
    const strokes = () => [css("chart-1"), css("chart-2")];
    const axis = (more) => ({ stroke: () => css("dim"), font: "12px system-ui, sans-serif", grid: { stroke: () => css("line"), width: 1 }, ticks: { stroke: () => css("line"), width: 1 }, ...more });
    const zone = window.console_page.utc() ? { tzDate: (ms) => uPlot.tzDate(new Date(ms), "Etc/UTC") } : {};
    const moved = (plot) => {
      const at = plot.cursor.left >= 0 ? plot.posToVal(plot.cursor.left, "x") : null;
      readout.textContent = at === null ? "\u00a0" : said(at);
    };
    function said(at) {
      const parts = [time(at)];
      for (const one of data.series) {
        let found = null;
        one.at.forEach((then, i) => { if (then <= at) found = at - then > data.hole_ms ? null : one.value[i]; });
        parts.push(`${one.name} ${amount(found, one)}`);
      }
      for (const strip of data.strips) {
        const stay = strip.bands.find(([, from, to]) => from <= at && at < to);
        if (stay) parts.push(data.strips.length > 1 ? `${strip.name}: ${stay[0]}` : stay[0]);
      }
      return parts.join(" · ");
    }
    const plot = new uPlot({
      ...zone, ms: 1, width: box.clientWidth || 600, height: box.clientWidth < 500 ? 220 : 280, legend: { show: false }, padding: [10, 12, 0, 0],
      cursor: { y: false, drag: { x: true, y: false, dist: 5, setScale: false }, points: { show: false }, bind: { dblclick: () => () => { zoomed(null); return null; } } },
      select: { show: true },
      scales: { x: { time: true, range: () => [data.from, data.to] }, y: { range: reach(data.lines) } },
      series: [{}, ...data.series.map((one, i) => ({ label: one.name, stroke: () => strokes()[i % 2], width: 2, dash: one.dashed ? [6, 4] : undefined, points: { show: one.at.length < 3, filter: (_, series, all) => all ? null : alone(columns[series - 1]) }, spanGaps: false }))],
      axes: [axis({ space: 100, values: instants }), axis({ size: (_, words) => Math.max(62, 20 + 7 * Math.max(0, ...(words || []).map((one) => one.length))), space: 36, values: (_, splits) => splits.map((one) => amount(one, { times: data.times, unit: data.unit === " %" ? " %" : "" })) })],
      hooks: {
        drawClear: [(one) => { if (data.strips.length === 1) inside(one, () => drawBands(one, data.strips[0], { ctx: one.ctx, left: one.bbox.left, top: one.bbox.top, high: one.bbox.height })); inside(one, () => drawAway(one, data.away || [])); }],
        draw: [(one) => inside(one, () => drawThresholds(one, data.lines, data)), (one) => drawLanes(one, box, data.strips.length > 1 ? data.strips : [])],
        setCursor: [moved],
        setSelect: [(one) => {
          if (one.select.width < 5) return;
          const ends = [one.select.left, one.select.left + one.select.width].map((x) => Math.round(one.posToVal(x, "x")));
          one.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
          zoomed(ends);
        }],
      },
    }, [times, ...columns], box);
    return plot;
  }

  // Times at the axis, in the reader's zone; the day where there is another one.
  function instants(plot, splits, axis, space, step) {
    let day = "";
    return splits.map((at) => {
      const [date, clock] = time(at).split(" "), shown = step < 60e3 ? clock : clock.slice(0, 5), before = day;
      day = date;
      return date === before ? shown : `${step >= 86400e3 ? "" : `${shown}\n`}${date.slice(5)}`;
    });
  }

  function inside(plot, work) {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    work();
    ctx.restore();
  }

  // one drawing in one box: drawn anew with other data, another width, theme or zone
  function drawing(box, readout, zoomed) {
    let plot = null, data = null;
    function again() {
      if (plot) plot.destroy();
      box.replaceChildren();
      plot = data ? draw(box, data, readout, zoomed) : null;
    }
    let wide = 0;
    new ResizeObserver(() => { if (box.clientWidth !== wide) { wide = box.clientWidth; again(); } }).observe(box);
    document.addEventListener("console:theme", again);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
    document.addEventListener("click", (event) => { if (event.target.closest("#zone")) again(); });
    return { show(given) { data = given; box.hidden = !given; wide = box.clientWidth; again(); } };
  }

  const legend = (list, names) => {
    list.replaceChildren(...names.map(([kind, words]) => {
      const item = make("li");
      item.append(make("span", "", { class: `key ${kind}`, "aria-hidden": "true" }), words);
      return item;
    }));
  };

  function table(head, rows, caption) {
    const made = make("table", "", { class: "rows" });
    made.append(make("caption", caption, { class: "unseen" }));
    const top = made.createTHead().insertRow();
    for (const word of head) top.append(make("th", word, { scope: "col" }));
    const body = made.createTBody();
    for (const row of rows) {
      const line = body.insertRow();
      row.forEach((cell, i) => line.append(make("td", cell, { "data-label": head[i] })));
    }
    return made;
  }

  window.console_chart = { drawing, legend, number, amount, span, time };

  // the chart of a breaker

  const ROWS = 200;

  function follow(section) {
    const part = (name) => section.querySelector(`[data-${name}]`);
    let length = "hour", chosen = null, busy = false, again = false, last = -Infinity, soon = 0, shown = null;
    const plot = drawing(part("plot"), part("readout"), choose);

    function choose(ends) {
      chosen = ends && ends[1] - ends[0] >= 1000 ? ends : null;
      load();
    }

    async function load() {
      again = true;
      if (busy) return;
      busy = true;
      while (again) {
        again = false;
        section.setAttribute("aria-busy", "true");
        if (!shown) part("told").textContent = "Reads the recorded samples…";
        const asked = new URLSearchParams(chosen ? { from: chosen[0], to: chosen[1] } : { span: length });
        const got = await fetch(`${section.dataset.chart}?${asked}`, { headers: { "HX-Request": "true" } }).catch(() => null);
        last = performance.now();
        section.removeAttribute("aria-busy");
        if (!got || !got.ok) { part("told").textContent = got && got.status === 403 ? "This key may not see the recorded samples." : "The chart could not be loaded; it is tried again with the next news."; continue; }
        if (!again) show(await got.json());
      }
      busy = false;
    }

    function show(data) {
      shown = data;
      const empty = !data.at.length;
      part("told").textContent = window.console_page.local([data.refused, empty && !data.refused ? "No value in this span: no sample was counted." : "", ...data.notes].filter(Boolean).join(" "));
      part("all").hidden = !chosen;
      plot.show({ from: data.from, to: data.to, hole_ms: data.hole_ms || 0, times: data.times, unit: data.unit, series: [{ name: "value", at: data.at, value: data.value, times: data.times, unit: data.unit }], lines: [["threshold", data.threshold, [7, 5]]], strips: [{ name: "state", bands: known(data.bands, data.away) }], away: data.away });
      const states = [...new Set(data.bands.map(([state]) => state))];
      legend(part("legend"), [["value", `${data.kind} of ${data.metric}`], ["threshold", "threshold"], ...states.map((state) => [state, state]), ...(data.away.length ? [["away", "service away"]] : [])]);
      figures(data);
      const rows = data.bands.slice(-ROWS).reverse().map(([state, from, to]) => [state, time(from), time(to), span(to - from)]);
      const left = data.bands.length - rows.length;
      part("table").replaceChildren(table(["State", "From", "To", "For"], rows, "States of this span, the newest first"), ...(left > 0 ? [make("p", `${left} older ones are not shown.`, { class: "hint" })] : []));
    }

    function figures(data) {
      const seen = data.seen === "machine" ? " (its machine; callers saw closed)" : "";
      const rows = [["Lowest value", amount(data.least, data)], ["Highest value", amount(data.most, data)], ["Value at the end", amount(data.last, data)], ["Threshold", amount(data.threshold, data)], [`Time open${seen}`, span(data.open_ms)], ["Time half_open", span(data.half_open_ms)], ["Span", `${time(data.from)} to ${time(data.to)}`]];
      if (data.samples !== undefined) rows.push(["Samples looked at", data.samples.toLocaleString("en")], ["Newest sample", data.newest_ms ? `${time(data.newest_ms)}, ${span(Math.max(0, window.console_page.clock() - data.newest_ms))} ago` : "none in the last week"]);
      part("figures").replaceChildren(...rows.flatMap(([word, value]) => [make("dt", word), make("dd", value)]));
    }

    for (const button of section.querySelectorAll("[data-span]")) {
      button.addEventListener("click", () => {
        for (const one of section.querySelectorAll("[data-span]")) one.setAttribute("aria-pressed", String(one === button));
        length = button.dataset.span;
        choose(null);
      });
    }
    part("all").addEventListener("click", () => choose(null));
    part("plot").addEventListener("keydown", (event) => {
      if (!shown) return;
      const wide = shown.to - shown.from, middle = (shown.from + shown.to) / 2;
      const to = { "+": [middle - wide / 4, middle + wide / 4], "-": [middle - wide, middle + wide], ArrowLeft: [shown.from - wide / 4, shown.to - wide / 4], ArrowRight: [shown.from + wide / 4, shown.to + wide / 4] }[event.key];
      if (event.key === "0") choose(null); else if (to) choose(to.map(Math.round)); else return;
      event.preventDefault();
    });
    document.addEventListener("console:news", (event) => {
      const { config, many, moved = [], figures: told = [] } = event.detail || {};
      if (chosen || !(config || many || JSON.stringify([moved, told]).includes(section.dataset.breaker))) return;
      clearTimeout(soon);
      soon = setTimeout(load, Math.max(0, last + 5000 - performance.now()));
    });
    document.addEventListener("click", (event) => { if (event.target.closest("#zone") && shown) show(shown); });
    load();
  }

  for (const section of document.querySelectorAll("[data-chart]")) follow(section);
})();
