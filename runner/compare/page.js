// The charts of two runs side by side: figures that Python has made, drawn by Plotly in the colours of the page.

async function load() {
  if (!("DecompressionStream" in window)) throw new Error("this browser is too old to unpack it (Safari before 16.4, Firefox before 113)");
  const packed = document.getElementById("compare-library").textContent;
  const bytes = Uint8Array.from(atob(packed), (c) => c.charCodeAt(0));
  const script = document.createElement("script");
  script.textContent = await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  document.head.append(script); // runs: the page's policy has its hash
  if (!window.Plotly) throw new Error("the page was changed after it was written");
}

const figures = JSON.parse(document.getElementById("compare-data").textContent).figures;
const coarse = matchMedia("(pointer: coarse)").matches; // a finger scrolls the page and does not zoom a chart
const config = { responsive: true, displaylogo: false, displayModeBar: false, showSendToCloud: false, plotlyServerURL: "" };
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function draw(box) {
  const { data, layout } = figures[Number(box.dataset.figure)];
  const own = { gridcolor: colour("--line"), linecolor: colour("--line"), zeroline: false, automargin: true };
  const line = { nticks: 8, exponentformat: "power", minexponent: 4, ...own };
  const axes = Object.fromEntries(Object.entries(layout).filter(([name]) => /^[xy]axis/.test(name)).map(([name, own]) => [name, { ...line, ...own }]));
  const clear = "rgba(0,0,0,0)", ink = colour("--ink");
  const common = {
    height: box.clientHeight, autosize: true, showlegend: false, paper_bgcolor: clear, plot_bgcolor: clear, hovermode: "closest",
    margin: { l: 52, r: 14, t: 14, b: 44 }, font: { color: ink, family: "system-ui, sans-serif", size: 12 }, dragmode: coarse ? false : "zoom",
    hoverlabel: { bgcolor: colour("--card"), bordercolor: colour("--soft"), font: { color: ink }, align: "left" },
  };
  return Plotly.react(box, data, { ...common, ...layout, ...axes }, config);
}

const boxes = [...document.querySelectorAll("[data-figure]")];
load().then(() => {
  boxes.forEach(draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => boxes.forEach(draw));
}).catch((error) => boxes.forEach((box) => box.replaceChildren(`The chart is missing: ${error.message}.`)));
