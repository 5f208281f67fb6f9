// The data of a report, its table of trials, and the panel of one trial. With charts.js one function, which page.py puts together.
// Texts of users reach the page as text nodes (`element`) and Plotly through `plain` alone.

const data = JSON.parse(document.getElementById("report-data").textContent);
const columns = new Map(data.columns.map((c) => [c.name, { ...c, values: c.values ?? c.codes.map((k) => c.choices[k]) }]));
const values = (name) => columns.get(name).values;
const count = columns.size ? values("trial").length : 0;
const RUN = data.runs.length > 1 ? "run id" : null; // the column that tells trials of several runs apart
const runColour = (row) => (RUN && data.runs.indexOf(values(RUN)[row]) % 2 ? ORANGE : BLUE);
const everyRow = [...Array(count).keys()];
const LIMITS = { points: 5000, parameters: 12, dimensions: 10, grid: 60, page: 25 };
const GOOD = "#2a9d62", BAD = "#d9534f", BLUE = "#3f8ccb", ORANGE = "#e08a2c", ARROW = "#ff4d6d";

// Texts and elements -----------------------------------------------------------------------------------------------------------

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children);
  return made;
}

const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
const clipped = (text, most) => (text.length > most ? text.slice(0, most - 2) + ".." : text);
const number = (value) => (typeof value === "number" ? value : null);
const finite = (name) => values(name).map(number);

function bytesUnit(top) {
  const units = [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]];
  return units.find(([, size]) => top >= size) ?? ["bytes", 1];
}

function shown(name, row) {
  const { unit, values: own } = columns.get(name);
  const value = own[row];
  if (value === null) return "–";
  if (typeof value !== "number") return value;
  if (unit === "bytes") {
    const [word, size] = bytesUnit(value);
    return `${size === 1 ? value : (value / size).toPrecision(4)} ${word}`;
  }
  return value !== 0 && Math.abs(value) < 1e-4 ? value.toExponential(4) : String(Number(value.toPrecision(6)));
}

function hover(row, ...more) {
  const names = new Set([...(RUN ? [RUN] : []), ...data.swept.slice(0, LIMITS.parameters), ...more, "status"]);
  const lines = [...names].filter((name) => columns.has(name)).map((name) => `${name} ${shown(name, row)}`);
  return [values("trial")[row], ...lines].map((line) => plain(clipped(line, 60))).join("<br>");
}

// One trial --------------------------------------------------------------------------------------------------------------------

const panel = document.getElementById("trial");

function select(row) {
  const list = element("dl");
  for (const name of columns.keys()) list.append(element("dt", {}, name), element("dd", {}, shown(name, row)));
  const close = element("button", { type: "button", class: "close", "aria-label": "close", onclick: () => (panel.hidden = true) }, "×");
  const link = element("a", { href: "#trials" }, "its row in the table");
  panel.replaceChildren(element("h3", {}, `Trial ${values("trial")[row]}`), close, list, ...artifacts(row), link);
  panel.hidden = false;
  table.show(row);
}

// Copies of the pictures, videos and links that the page has for a trial.
function artifacts(row) {
  const own = [...document.querySelectorAll(`#artifacts [data-trial="${row}"]`)];
  const media = own.flatMap((button) => [...(button.closest("figure")?.querySelectorAll("img, video") ?? [])]);
  const links = own.flatMap((button) => [...(button.closest("tr")?.querySelectorAll("a") ?? [])]);
  return [...media, ...links].map((found) => element("p", {}, found.cloneNode(true)));
}

document.addEventListener("click", (event) => {
  const button = event.target.closest?.("[data-trial]");
  if (button) select(Number(button.dataset.trial));
});
document.addEventListener("keydown", (event) => event.key === "Escape" && (panel.hidden = true));

// The table of trials ----------------------------------------------------------------------------------------------------------

const table = (() => {
  const place = document.querySelector("#trials .rows");
  const differs = (c) => count === 1 || c.values || c.choices.length > 1 || c.name === "status";
  const varied = data.columns.filter(differs).map((c) => c.name);
  const state = { sort: columns.has("loss") ? "loss" : null, down: false, words: "", kept: null, first: 0, row: null };
  const find = element("input", { type: "search", placeholder: "find in all columns", "aria-label": "find in all columns" });
  find.addEventListener("input", () => Object.assign(state, { words: find.value.toLowerCase(), first: 0 }) && draw());
  document.querySelector("#trials .controls").append(find);

  function compare(a, b) {
    const [x, y] = [values(state.sort)[a], values(state.sort)[b]];
    const [p, q] = [number(x) ?? x, number(y) ?? y];
    if (typeof p !== typeof q || p === null || q === null) return rank(p) - rank(q); // missing values are last, up and down
    return (p < q ? -1 : p > q ? 1 : a - b) * (state.down ? -1 : 1);
  }
  const rank = (value) => (typeof value === "number" ? 0 : value === null ? 2 : 1);

  function rows() {
    let found = everyRow;
    if (state.kept) found = found.filter((row) => state.kept.has(row));
    if (state.words) found = found.filter((row) => varied.some((name) => String(shown(name, row)).toLowerCase().includes(state.words)));
    return state.sort === null ? found : [...found].sort(compare);
  }

  function heading(name) {
    const mine = state.sort === name;
    const press = () => Object.assign(state, { sort: name, down: mine && !state.down, first: 0 }) && draw();
    const button = element("button", { type: "button", onclick: press }, name + (mine ? (state.down ? " ▾" : " ▴") : ""));
    const kind = columns.get(name).numeric ? "n" : "";
    return element("th", { class: kind, "aria-sort": mine ? (state.down ? "descending" : "ascending") : "none" }, button);
  }

  function line(row) {
    const cells = varied.map((name) => {
      const kind = columns.get(name).numeric ? "n" : name === "status" ? values(name)[row] : "";
      return element("td", { class: kind }, clipped(String(shown(name, row)), 60));
    });
    return element("tr", { "data-trial": row, class: row === state.row ? "chosen" : "" }, ...cells);
  }

  function step(word, by, possible) {
    const press = () => ((state.first += by), draw());
    return element("button", { type: "button", disabled: !possible, onclick: press }, word);
  }

  function draw(found = rows()) {
    const last = Math.min(state.first + LIMITS.page, found.length);
    const body = element("tbody", {}, ...found.slice(state.first, last).map(line));
    const head = element("thead", {}, element("tr", {}, ...varied.map(heading)));
    const said = found.length ? `${state.first + 1} to ${last} of ${found.length}` : "none";
    const before = step("‹ before", -LIMITS.page, state.first > 0), after = step("after ›", LIMITS.page, last < found.length);
    const scroll = place.querySelector(".scroll")?.scrollLeft ?? 0;
    const whole = element("div", { class: "scroll" }, element("table", {}, head, body));
    place.replaceChildren(whole, element("div", { class: "pages" }, before, said, after));
    whole.scrollLeft = scroll;
  }

  function show(row) {
    const found = rows(), at = found.indexOf(row);
    if (at >= 0) state.first = at - (at % LIMITS.page);
    state.row = row;
    draw(found);
  }
  if (count) draw();
  return { show, keep: (rows) => Object.assign(state, { kept: rows, first: 0 }) && draw() };
})();
