// What the charts of a report show. Plotly draws them; page.js has what this uses.

// The chart library ------------------------------------------------------------------------------------------------------------

async function load() {
  if (!("DecompressionStream" in window)) throw new Error("this browser is too old to unpack it (Safari before 16.4, Firefox before 113)");
  const packed = document.getElementById("report-library").textContent;
  const bytes = Uint8Array.from(atob(packed), (c) => c.charCodeAt(0));
  const unpacked = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.textContent = await new Response(unpacked).text();
  document.head.append(script); // runs: the page's policy has its hash
  if (!window.Plotly) throw new Error("the page was changed after it was written");
}

const ready = load();
ready.catch((error) => {
  for (const place of document.querySelectorAll(".plots")) place.replaceChildren(`The charts are missing: ${error.message}.`);
});

// Charts -----------------------------------------------------------------------------------------------------------------------

const coarse = matchMedia("(pointer: coarse)").matches; // a finger scrolls the page and does not zoom a chart
const config = {
  responsive: true, displaylogo: false, displayModeBar: coarse ? false : "hover", modeBarButtonsToRemove: ["select2d", "lasso2d"],
  showSendToCloud: false, plotlyServerURL: "", // by default a button uploads the chart to Plotly's servers
};
const night = matchMedia("(prefers-color-scheme: dark)");
const boxes = new Set();
const seen = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (!entry.isIntersecting || entry.target.drawn) continue;
    entry.target.drawn = true;
    draw(entry.target);
  }
}, { rootMargin: "300px" });

async function draw(box) {
  await ready;
  const { traces, layout } = box.make(box.clientWidth);
  await Plotly.react(box, traces, { ...base(box.clientHeight), ...layout }, config);
  if (box.heard) return;
  box.heard = true;
  box.on("plotly_click", ({ points: [point] }) => {
    const row = point.data.meta?.[0] ?? (Array.isArray(point.customdata) ? point.customdata[0] : point.customdata);
    if (typeof row === "number") select(row);
  });
  box.dispatchEvent(new Event("drawn"));
}

const again = (place) => place.querySelectorAll(".chart").forEach((box) => box.drawn && draw(box));
night.addEventListener("change", () => boxes.forEach((box) => box.drawn && draw(box)));

function chart(place, label, make, kind = "") {
  const box = element("div", { class: `chart ${kind}`, role: "img", "aria-label": label });
  box.make = make;
  place.append(box);
  boxes.add(box);
  seen.observe(box);
  return box;
}

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function base(height) {
  const ink = colour("--ink"), clear = "rgba(0,0,0,0)";
  return {
    height, autosize: true, showlegend: false, margin: { l: 52, r: 14, t: 10, b: 40 }, paper_bgcolor: clear, plot_bgcolor: clear,
    dragmode: coarse ? false : "zoom", hovermode: "closest", modebar: { bgcolor: clear, color: colour("--soft"), activecolor: ink }, font: { color: ink, family: "system-ui, sans-serif", size: 12 },
    hoverlabel: { bgcolor: colour("--card"), bordercolor: colour("--soft"), font: { color: ink }, align: "left" },
  };
}

function axis(title, more = {}) {
  const line = colour("--line");
  const common = { gridcolor: line, linecolor: line, zeroline: false, automargin: true, exponentformat: "power", minexponent: 4 };
  return { title: { text: plain(clipped(title, 36)), standoff: 8 }, nticks: 8, ...common, ...more };
}

// Numbers that differ by factors are on a logarithmic axis, where nothing else is asked for.
function wide(numbers) {
  let low = Infinity, high = -Infinity;
  for (const value of numbers) if (value !== null) [low, high] = [Math.min(low, value), Math.max(high, value)];
  return low > 0 && high > 50 * low;
}
function spread(numbers) {
  const sorted = numbers.filter((value) => value !== null).sort((a, b) => a - b);
  return wide(sorted) && sorted[sorted.length >> 1] < 0.15 * sorted[sorted.length - 1];
}

// The type of an axis of numbers; one that spans several decades has a label for each of them alone.
function kind(log, numbers) {
  if (!log) return { type: "linear" };
  const some = numbers.filter((value) => value > 0);
  const decades = Math.log10(some.reduce((a, b) => Math.max(a, b), 0) / some.reduce((a, b) => Math.min(a, b), Infinity));
  return { type: "log", dtick: decades > 6 ? Math.ceil(decades / 6) : decades > 1.5 ? 1 : "D2" };
}

// The places of a column's values on an axis: numbers by value, anything else by order of appearance.
function positions(name) {
  if (columns.get(name).numeric) {
    const own = finite(name), log = spread(own);
    return { at: own, log, axis: (more) => axis(name, { ...kind(log, own), ...more }) };
  }
  const texts = values(name), choices = [...new Set(texts.filter((text) => text !== null))];
  const places = new Map(choices.map((text, place) => [text, place]));
  const every = Math.ceil(choices.length / 12), ticks = choices.filter((_, place) => place % every === 0);
  const labels = { tickvals: ticks.map((text) => places.get(text)), ticktext: ticks.map((text) => plain(clipped(String(text), 18))) };
  const at = texts.map((text) => places.get(text) ?? null);
  return { at, log: false, labels, axis: (more) => axis(name, { type: "linear", range: [-0.5, choices.length - 0.5], ...labels, ...more }) };
}

// Labels of whole decades on a linear axis of logarithms.
function decades(logarithms) {
  const own = logarithms.filter((value) => value !== null);
  const low = Math.ceil(own.reduce((a, b) => Math.min(a, b)) - 1e-9), high = Math.floor(own.reduce((a, b) => Math.max(a, b)) + 1e-9);
  const tickvals = [];
  for (let k = low; k <= high; k += Math.max(1, Math.ceil((high - low) / 6))) tickvals.push(k);
  return { tickvals, ticktext: tickvals.map((k) => (k > -4 && k < 4 ? String(10 ** k) : `1e${k}`)) };
}

// As `positions`, with logarithms on a linear axis instead of a logarithmic one. `slope`: of the value by the place, in a row.
function linearized(name) {
  const place = positions(name);
  if (!place.log) return { ...place, slope: () => 1 };
  const at = place.at.map((value) => (value === null ? null : Math.log10(value)));
  const labels = decades(at);
  return { at, labels, slope: (row) => place.at[row] * Math.LN10, axis: (more) => axis(name, { type: "linear", ...labels, ...more }) };
}

function sampled(rows, most = LIMITS.points) {
  return rows.length <= most ? rows : Array.from({ length: most }, (_, k) => rows[Math.round((k * (rows.length - 1)) / (most - 1))]);
}

function bestRow() {
  if (!columns.has("loss")) return null;
  const losses = finite("loss");
  return everyRow.reduce((best, row) => (losses[row] !== null && (best === null || losses[row] < losses[best]) ? row : best), null);
}
const best = bestRow();
const bar = { thickness: 10, outlinewidth: 0, exponentformat: "power", nticks: 6 };

// From small to large; on a dark page without the darkest ones.
function scale() {
  const dark = ["#8a6ff0", "#4f8fe0", "#2fb5a0", "#8fd744", "#fde725"];
  const light = ["#440154", "#3b528b", "#21918c", "#5ec962", "#fde725"];
  return (night.matches ? dark : light).map((shade, place) => [place / 4, shade]);
}

// Colours of numbers, on a logarithmic scale where they differ by factors; of runs, one for each.
function coloured(name, rows) {
  if (name === RUN) return { color: rows.map(runColour) };
  const all = finite(name), own = rows.map((row) => all[row]), log = wide(own);
  const color = log ? own.map((value) => (value === null ? null : Math.log10(value))) : own;
  const title = { text: plain(clipped(log ? `log10 ${name}` : name, 24)), side: "right" };
  return { color, colorscale: scale(), showscale: true, colorbar: { ...bar, title } };
}

// Controls ---------------------------------------------------------------------------------------------------------------------

function choice(place, label, options, chosen, then) {
  const box = element("select", {}, ...options.map((name) => element("option", { selected: name === chosen }, name)));
  box.addEventListener("change", () => then(box.value));
  place.append(element("label", {}, `${label} `, box));
  return box;
}

const numericNames = data.columns.filter((c) => c.numeric).map((c) => c.name);
const measured = numericNames.filter((name) => columns.get(name).role !== "parameter");
const firstValue = measured.includes("loss") ? "loss" : measured[0];

function part(id) {
  const place = document.getElementById(id);
  if (!place?.querySelector(".plots")) return null;
  return { controls: place.querySelector(".controls"), plots: place.querySelector(".plots"), note: place.querySelector(".note") };
}

// A value against each parameter -----------------------------------------------------------------------------------------------

function parameters({ controls, plots, note }) {
  const asked = { value: firstValue, colour: RUN ?? "none", scale: "automatic" };
  const change = (key) => (value) => ((asked[key] = value), again(plots));
  choice(controls, "value", measured, asked.value, change("value"));
  choice(controls, "colour", ["none", ...(RUN ? [RUN] : []), ...numericNames], asked.colour, change("colour"));
  choice(controls, "scale", ["automatic", "linear", "logarithmic"], asked.scale, change("scale"));
  const names = data.swept.slice(0, LIMITS.parameters);
  for (const name of names.length ? names : [null]) chart(plots, `values against ${name ?? "trial"}`, () => against(name, asked), "small");
  const rest = data.swept.slice(LIMITS.parameters);
  if (rest.length) note.textContent += `Without a chart: ${rest.join(", ")}. `;
  if (count > LIMITS.points) note.textContent += `Each chart shows ${LIMITS.points} of ${count} trials, evenly spread.`;
}

function against(name, { value, colour: by, scale }) {
  const x = name === null ? { at: everyRow, axis: () => axis("trial, in the order of the sweep") } : positions(name);
  const y = finite(value), given = everyRow.filter((row) => x.at[row] !== null && y[row] !== null);
  const log = scale === "logarithmic" || (scale === "automatic" && wide(y));
  const rows = sampled(log ? given.filter((row) => y[row] > 0) : given);
  const ended = new Set(["done", "failed", "poisoned"]);
  const without = sampled(everyRow.filter((row) => x.at[row] !== null && y[row] === null && ended.has(values("status")[row])));
  const size = rows.length <= 100 ? 8 : rows.length <= 1000 ? 6 : 4;
  const marker = { size, opacity: rows.length <= 100 ? 0.9 : 0.6, ...(by === "none" ? { color: BLUE } : coloured(by, rows)) };
  const points = (own, more) => ({
    type: "scatter", mode: "markers", x: own.map((row) => x.at[row]), y: own.map((row) => y[row]), customdata: own,
    text: own.map((row) => hover(row, value, ...(by === "none" ? [] : [by]))), hovertemplate: "%{text}<extra></extra>", ...more,
  });
  const ticks = { symbol: "line-ns-open", size: 11, color: BAD };
  const traces = [points(rows, { marker }), points(without, { y: without.map(() => 0), yaxis: "y2", marker: ticks, cliponaxis: false })];
  if (best !== null && given.includes(best)) {
    traces.push(points([best], { hoverinfo: "skip", hovertemplate: null, marker: { size: 13, color: "rgba(0,0,0,0)", line: { color: GOOD, width: 2.5 } } }));
  }
  const edge = { overlaying: "y", range: [0, 1], visible: false, fixedrange: true };
  return { traces, layout: { xaxis: x.axis(), yaxis: axis(value, kind(log, y)), yaxis2: edge } };
}

// Two parameters: a heat map or coloured points, with arrows downhill ----------------------------------------------------------

function pairs({ controls, plots, note }) {
  const sloped = Object.keys(data.gradients).filter((name) => columns.has(name));
  const names = [...new Set([...data.swept, ...sloped])];
  const [x, y] = sloped.length > 1 ? sloped : names;
  const asked = { x, y, value: firstValue, arrows: true };
  const change = (key) => (value) => ((asked[key] = value), again(plots));
  choice(controls, "x", names, x, change("x"));
  choice(controls, "y", names, y, change("y"));
  choice(controls, "value", measured, asked.value, change("value"));
  if (sloped.length > 1) {
    const box = element("input", { type: "checkbox", checked: true, onchange: () => change("arrows")(box.checked) });
    controls.append(element("label", {}, box, " gradients"));
  }
  chart(plots, "values over two parameters", (width) => surface(asked, note, width), "large");
}

const distinct = (rows, at) => [...new Set(rows.map((row) => at[row]))].sort((a, b) => a - b);

// The centres of the cells of an axis: its values where these are few, else equal parts of it.
function cells(rows, { at }, parts) {
  const own = distinct(rows, at);
  if (own.length <= LIMITS.grid) return { centres: own, of: new Map(own.map((value, place) => [value, place])), exact: true };
  const low = own[0], width = (own[own.length - 1] - low) / parts;
  const of = { get: (value) => Math.min(parts - 1, Math.floor((value - low) / width)) };
  return { centres: Array.from({ length: parts }, (_, k) => low + (k + 0.5) * width), of, exact: false };
}

function surface(asked, note, width) {
  const x = linearized(asked.x), y = linearized(asked.y), z = finite(asked.value);
  const rows = everyRow.filter((row) => x.at[row] !== null && y.at[row] !== null && z[row] !== null);
  const parts = width < 500 ? 20 : 36, across = cells(rows, x, parts), up = cells(rows, y, parts);
  const size = across.centres.length * up.centres.length, filled = rows.length >= 0.4 * size || (rows.length > 600 && !(across.exact && up.exact));
  const cell = (row) => up.of.get(y.at[row]) * across.centres.length + across.of.get(x.at[row]);
  const lowest = new Map();
  for (const row of rows) if (!lowest.has(cell(row)) || z[row] < z[lowest.get(cell(row))]) lowest.set(cell(row), row);
  const chosen = filled ? [...lowest.values()] : sampled(rows);
  const traces = filled ? [heat(asked, across, up, lowest)] : [spots(asked, x, y, chosen)];
  const arrowed = data.gradients[asked.x] && data.gradients[asked.y] && asked.x !== asked.y && asked.arrows;
  if (arrowed) {
    const inside = [width - 150, width < 500 ? 270 : 330], cellSize = Math.min(inside[0] / across.centres.length, inside[1] / up.centres.length);
    const longest = filled ? Math.max(18, Math.min(40, 1.1 * cellSize)) : 34;
    traces.push(arrows(asked, x, y, thinned(chosen, filled, across, up, cell, width), inside, longest));
  }
  note.textContent = surfaceSaid(asked, filled, across.exact && up.exact, rows.length > lowest.size, arrowed);
  const sides = (place, own) => place.axis({ showgrid: !filled, range: around(chosen, place, own.centres.length, filled) });
  return { traces, layout: { xaxis: sides(x, across), yaxis: sides(y, up) } };
}

// The range of an axis: half a cell, or some room, beyond its values. Arrows would widen it.
function around(rows, { at }, cells, filled) {
  if (!rows.length) return [0, 1];
  const own = rows.map((row) => at[row]);
  const [low, high] = [own.reduce((a, b) => Math.min(a, b)), own.reduce((a, b) => Math.max(a, b))];
  const room = high === low ? 0.5 : ((high - low) * (filled && cells > 1 ? 0.5 / (cells - 1) : 0.07));
  return [low - room, high + room];
}

function surfaceSaid(asked, filled, exact, several, arrowed) {
  const said = [];
  if (filled && several) said.push(`A cell shows the trial with the smallest ${asked.value} in it.`);
  if (filled && !exact) said.push("The cells are equal parts of the axes.");
  if (arrowed) said.push("Arrows point where the loss falls fastest on this picture; their length grows with the square root of the slope.");
  return said.join(" ");
}

function heat(asked, across, up, lowest) {
  const grid = (what) => up.centres.map((_, j) => across.centres.map((_, i) => what(lowest.get(j * across.centres.length + i))));
  const own = finite(asked.value), log = wide([...lowest.values()].map((row) => own[row]));
  const z = grid((row) => (row === undefined ? null : log ? Math.log10(own[row]) : own[row]));
  const title = { text: plain(clipped(log ? `log10 ${asked.value}` : asked.value, 24)), side: "right" };
  return {
    type: "heatmap", x: across.centres, y: up.centres, z, colorscale: scale(), colorbar: { ...bar, title }, hoverongaps: false, zorder: -1,
    customdata: grid((row) => row ?? null), text: grid((row) => (row === undefined ? "" : hover(row, asked.x, asked.y, asked.value))),
    hovertemplate: "%{text}<extra></extra>",
  };
}

function spots(asked, x, y, rows) {
  const marker = { size: rows.length <= 100 ? 11 : 7, ...coloured(asked.value, rows) };
  return {
    type: "scatter", mode: "markers", x: rows.map((row) => x.at[row]), y: rows.map((row) => y.at[row]), customdata: rows, marker,
    text: rows.map((row) => hover(row, asked.x, asked.y, asked.value)), hovertemplate: "%{text}<extra></extra>",
  };
}

// No more arrows than can be told apart: of cells every k-th in both directions.
function thinned(rows, filled, across, up, cell, width) {
  const most = width < 500 ? 14 : 24;
  if (!filled) return sampled(rows, most * most);
  const wideStep = Math.ceil(across.centres.length / most), highStep = Math.ceil(up.centres.length / most);
  return rows.filter((row) => {
    const place = cell(row);
    return (place % across.centres.length) % wideStep === 0 && Math.floor(place / across.centres.length) % highStep === 0;
  });
}

// Steepest descent as the picture shows it: of derivatives by pixels. The longest arrow has `longest` pixels.
function arrows(asked, x, y, rows, [width, height], longest) {
  const sides = [[asked.x, x, width], [asked.y, y, height]].map(([name, place, pixels]) => {
    const own = finite(data.gradients[name]), [low, high] = around(rows, place, 2, true);
    const unit = (high - low) / pixels; // of the axis, for a pixel
    return { unit, slopes: rows.map((row) => (own[row] === null ? NaN : own[row] * place.slope(row) * unit)) };
  });
  const norms = rows.map((_, k) => Math.hypot(sides[0].slopes[k], sides[1].slopes[k]));
  const kept = rows.map((_, k) => k).filter((k) => norms[k] > 0);
  const most = kept.reduce((a, k) => Math.max(a, norms[k]), 0);
  const reach = ({ unit, slopes }) => kept.map((k) => (-slopes[k] / norms[k]) * longest * Math.sqrt(norms[k] / most) * unit);
  const [u, v] = sides.map(reach);
  return {
    type: "quiver", x: kept.map((k) => x.at[rows[k]]), y: kept.map((k) => y.at[rows[k]]), u, v, arrowref: "data", lengthmode: "raw",
    anchor: "tail", hoverinfo: "skip", marker: { color: ARROW, line: { width: 1.6 } },
  };
}

// All parameters: parallel coordinates -----------------------------------------------------------------------------------------

function parallel({ controls, plots, note }) {
  const asked = { value: firstValue };
  const names = () => [...data.swept.slice(0, LIMITS.dimensions), asked.value];
  choice(controls, "value", measured, asked.value, (value) => ((asked.value = value), keep(null), again(plots)));
  const clear = element("button", { type: "button", onclick: () => (keep(null), Plotly.purge(box), (box.heard = false), draw(box)) }, "clear ranges");
  controls.append(clear);
  const rows = () => {
    const all = names().map((name) => positions(name).at);
    return everyRow.filter((row) => all.every((at) => at[row] !== null));
  };
  const box = chart(plots, "parallel coordinates", () => lines(names(), asked.value, rows()), "parallel");
  box.style.minWidth = `${Math.max(3, names().length) * 92}px`;
  box.addEventListener("drawn", () => box.on("plotly_restyle", () => keep(kept(box.data[0].dimensions, rows()))));

  function keep(found) {
    table.keep(found);
    const rest = data.swept.length - LIMITS.dimensions;
    note.textContent = (found ? `${found.size} trials are kept.` : "") + (rest > 0 ? ` Without an axis: ${rest} parameters.` : "");
  }
  keep(null);
}

function lines(names, value, rows) {
  const ink = colour("--ink");
  const dimensions = names.map((name) => {
    const { at, labels } = linearized(name); // its ticks are text nodes, and no `plain` text
    const ticks = labels && { ...labels, ticktext: labels.ticktext.map((text) => text.replace(/&lt;/g, "<").replace(/&gt;/g, ">").replace(/&amp;/g, "&")) };
    return { label: plain(clipped(name, 14)), values: rows.map((row) => at[row]), tickformat: ".4~g", ...ticks };
  });
  const font = { color: ink, size: 11 };
  const line = { ...coloured(value, rows), showscale: false };
  const trace = { type: "parcoords", dimensions, line, labelfont: font, tickfont: { ...font, size: 10 }, rangefont: { ...font, size: 10 }, unselected: { line: { opacity: 0.04 } } };
  return { traces: [trace], layout: { margin: { l: 46, r: 46, t: 46, b: 22 } } };
}

function kept(dimensions, rows) {
  const ranged = dimensions.filter((one) => one.constraintrange);
  if (!ranged.length) return null;
  const inside = (one, k) => {
    const ranges = Array.isArray(one.constraintrange[0]) ? one.constraintrange : [one.constraintrange];
    return ranges.some(([low, high]) => one.values[k] >= low && one.values[k] <= high);
  };
  return new Set(rows.filter((_, k) => ranged.every((one) => inside(one, k))));
}

// Values by step, devices, memory ----------------------------------------------------------------------------------------------

function steps({ controls, plots, note }) {
  const asked = { name: data.steps[0].name, scale: "automatic" };
  const change = (key) => (value) => ((asked[key] = value), again(plots));
  if (data.steps.length > 1) choice(controls, "value", data.steps.map((one) => one.name), asked.name, change("name"));
  choice(controls, "scale", ["automatic", "linear", "logarithmic"], asked.scale, change("scale"));
  chart(plots, "values by step", () => bySteps(asked, note), "large");
}

function bySteps({ name, scale }, note) {
  const { curves, of } = data.steps.find((one) => one.name === name);
  note.textContent = `${curves.length} of ${of} trials.`;
  const log = scale === "logarithmic" || (scale === "automatic" && wide(curves.flatMap((curve) => curve.y)));
  const traces = curves.map(({ trial, x, y }, place) => ({
    type: "scatter", mode: x.length === 1 ? "markers" : "lines", x, y, meta: [trial, trial === null ? "" : hover(trial, "loss")],
    hovertemplate: "%{meta[1]}<br>step %{x}: %{y:.6g}<extra></extra>", opacity: place || RUN ? 0.55 : 1,
    line: place || RUN ? { color: trial === null ? BLUE : runColour(trial), width: 1 } : { color: GOOD, width: 2.5 },
  }));
  return { traces: traces.reverse(), layout: { xaxis: axis("step"), yaxis: axis(name, kind(log, curves.flatMap((curve) => curve.y))) } };
}

function devices({ plots }) {
  for (const device of data.devices) {
    const pair = element("div", { class: "plots" });
    plots.append(element("figure", { class: "whole" }, pair, element("figcaption", {}, device.said)));
    const held = (curve, more) => ({ type: "scatter", mode: "lines", line: { shape: "hv", color: BLUE, width: 1.5 }, ...curve, ...more });
    const { x } = device.claimed, capacity = { x: [x[0], x[x.length - 1]], y: [device.capacity, device.capacity] };
    const top = { ...capacity, type: "scatter", mode: "lines", name: "capacity", line: { color: BAD, dash: "dash", width: 1.5 } };
    const time = () => axis("seconds since the run began");
    chart(pair, `bytes claimed on ${device.device}`, () => ({
      traces: [held(device.claimed, { fill: "tozeroy", name: "claimed" }), ...(device.capacity === null ? [] : [top])],
      layout: { xaxis: time(), yaxis: axis(`claimed, ${device.unit}`, { rangemode: "tozero" }) },
    }), "small");
    chart(pair, `trials at once on ${device.device}`, () => ({
      traces: [held(device.running, { name: "trials" })],
      layout: { xaxis: time(), yaxis: axis("trials at once", { rangemode: "tozero", ...(Math.max(...device.running.y) < 9 ? { dtick: 1 } : {}) }) },
    }), "small");
  }
}

function memory({ plots }) {
  const planned = finite("planned_bytes"), used = finite("used_bytes"), one = new Map();
  for (const row of everyRow) if (planned[row] && used[row]) one.set(`${planned[row]} ${used[row]}`, row);
  const rows = sampled([...one.values()]), all = rows.flatMap((row) => [planned[row], used[row]]);
  const low = all.reduce((a, b) => Math.min(a, b)), high = all.reduce((a, b) => Math.max(a, b));
  const [unit, size] = bytesUnit(high), type = wide(all) ? "log" : "linear", ends = [type === "log" ? low / 1.3 / size : 0, (1.15 * high) / size];
  chart(plots, "bytes planned and used", () => ({
    traces: [
      { type: "scatter", mode: "lines", x: ends, y: ends, line: { color: colour("--soft"), dash: "dash", width: 1 }, hoverinfo: "skip" },
      { type: "scatter", mode: "markers", x: rows.map((row) => planned[row] / size), y: rows.map((row) => used[row] / size), customdata: rows,
        text: rows.map((row) => hover(row, "planned_bytes", "used_bytes")), hovertemplate: "%{text}<extra></extra>", marker: { color: BLUE, size: 8, opacity: 0.75 } },
    ],
    layout: { xaxis: axis(`planned, ${unit}`, { type }), yaxis: axis(`used, ${unit}`, { type }) },
  }), "small");
}

for (const [id, fill] of Object.entries({ parameters, pairs, parallel, steps, devices, memory })) {
  const found = part(id);
  if (found) fill(found);
}
