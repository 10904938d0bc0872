// Draws the figures that the server sends: colours are looked up in the style sheet, times moved to
// the chosen zone, and every figure filled into the table beside it as well.

import { axisTimes, clockText } from "./times.js";

// Of a chart on paper, in pixels: what an upright A4 or letter page has room for.
const PAPER_WIDTH = 640;
const PLOT_HEIGHT = 250; // as in app.css
const CONFIG = { displayModeBar: false, responsive: false, doubleClick: false, showTips: false, scrollZoom: false };
let figures = {};
let etag = "";
let paperWidth = 0;
// Whether Plotly can draw: its script is executed after this one, while figures are fetched.
const plotly = plotlyLoaded();
const resized = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    if (target.classList.contains("js-plotly-plot") && target.clientWidth) window.Plotly.Plots.resize(target);
  }
});

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// Black or white, whichever can be read better on a colour, as WCAG measures it.
function readableOn(hex) {
  const parts = [1, 3, 5].map((place) => parseInt(hex.slice(place, place + 2), 16) / 255);
  const linear = parts.map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
  const luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  return luminance > 0.179 ? "#000000" : "#ffffff";
}

// Replaces "--name" by that property's value, and "--text-on-name" by a colour of text on it,
// everywhere inside a figure.
function resolve(value) {
  if (Array.isArray(value)) return value.map(resolve);
  if (value && typeof value === "object") {
    return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, resolve(inner)]));
  }
  if (typeof value !== "string") return value;
  if (value.startsWith("--text-on-")) return readableOn(colour(value.replace("--text-on-", "--")));
  return value.startsWith("--") ? colour(value) : value;
}

// Exponents are written as 1e-5: raised ones have inline styles, which our policy forbids.
function axis(own, times) {
  const base = {
    gridcolor: colour("--line"), linecolor: colour("--line-strong"), zerolinecolor: colour("--line"),
    tickfont: { size: 11 }, automargin: true, fixedrange: true, exponentformat: "e", title: { standoff: 8, font: { size: 11 } },
  };
  const merged = { ...base, ...own, title: { ...base.title, ...own?.title } };
  if (own?.type === "date") {
    merged.range = own.range?.map(times.stampOf);
    merged.tickformatstops = [
      { dtickrange: [null, 60000], value: "%H:%M:%S" },
      { dtickrange: [60000, 86400000], value: "%H:%M" },
      { dtickrange: [86400000, null], value: "%b %-d" },
    ];
    merged.nticks = 7;
    merged.hoverformat = "%b %-d, %H:%M:%S";
  }
  return merged;
}

// Cuts a text, in which Plotly reads entities.
function cut(text, most) {
  const characters = text.match(/&#?\w+;|./gsu) ?? [];
  return characters.length > most ? `${characters.slice(0, most - 1).join("")}…` : text;
}

// Cuts what is written at parallel axes to the room between two: a character is some 7 pixels wide,
// and at the first axis a text begins where those at others have their middle.
function withRoom(own, width) {
  const titles = own.xaxis?.ticktext;
  if (!titles) return own;
  const most = Math.max(6, Math.floor(width / titles.length / 7));
  const annotations = own.annotations.map((one) => ({ ...one, text: cut(one.text, Math.ceil(most / 1.5)) }));
  return { ...own, annotations, xaxis: { ...own.xaxis, ticktext: titles.map((title) => cut(title, most)) } };
}

// Labels beside a vertical axis fit into the margins, so Plotly need not measure each.
function valueAxis(own) {
  return { ticklabeloverflow: "allow", ...axis(own) };
}

function layout(own, times) {
  return {
    ...own,
    shapes: (own.shapes ?? []).map((shape) => (times ? { ...shape, x0: times.stampOf(shape.x0), x1: times.stampOf(shape.x1) } : shape)),
    annotations: (own.annotations ?? []).map((one) => (times ? { ...one, x: times.stampOf(one.x) } : one)),
    xaxis: axis(own.xaxis, times), yaxis: valueAxis(own.yaxis), ...(own.yaxis2 && { yaxis2: valueAxis(own.yaxis2) }),
    margin: { l: 8, r: 12, t: 8, b: 8 }, showlegend: false, autosize: !paperWidth, ...(paperWidth && { width: paperWidth, height: own.height ?? PLOT_HEIGHT }), dragmode: (hasMouse() && own.dragmode) || false,
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: colour("--muted") },
    hoverlabel: { bgcolor: colour("--surface"), bordercolor: colour("--line-strong"), font: { color: colour("--text"), size: 12 }, align: "left", namelength: -1 },
    hovermode: own.hovermode ?? "closest",
  };
}

// The exponential moving average from 0 on, corrected for that beginning; gaps stay gaps.
function smoothed(values, weight) {
  let sum = 0;
  let rest = 1;
  return values.map((value) => {
    if (value === null) return null;
    sum = weight * sum + (1 - weight) * value;
    rest *= weight;
    return sum / (1 - rest);
  });
}

// Puts a smoothed line over each pale one.
function withSmoothing(traces, weight) {
  if (!weight) return traces;
  return traces.flatMap((trace) => [
    { ...trace, mode: "lines", opacity: 0.3, hoverinfo: "skip", hovertemplate: undefined },
    { ...trace, mode: trace.mode.replace("+markers", ""), y: smoothed(trace.y, weight) },
  ]);
}

// Bars begin at their base, and their x are lengths.
function atLocalTimes(trace, times) {
  const name = trace.base ? "base" : "x";
  return { ...trace, [name]: trace[name].map(times.stampOf) };
}

// How the time axis of a figure shows times; null if it has none.
function timesOf({ data, layout: { xaxis } }) {
  if (xaxis?.type !== "date") return null;
  const all = [...(xaxis.range ?? []), ...data.flatMap((trace) => trace.base ?? trace.x)];
  return axisTimes(all.reduce((a, b) => Math.min(a, b), Infinity), all.reduce((a, b) => Math.max(a, b), -Infinity));
}

// On a touch screen drawing over a chart would keep the page from scrolling.
function hasMouse() {
  return window.matchMedia("(pointer: fine)").matches;
}

// Opens the part of the time axis that was drawn over, under an address of its own.
function zoom(change, times) {
  const ends = [change["xaxis.range[0]"], change["xaxis.range[1]"]];
  if (ends.some((end) => end === undefined)) return;
  const address = new URL(window.location.href);
  const [from, to] = ends.map((end) => times.timeOf(end).toISOString());
  address.searchParams.delete("window");
  address.searchParams.set("from", from);
  address.searchParams.set("to", to);
  window.location.assign(address);
}

function isDrawable(figure) {
  return figure.data.some((trace) => trace.name !== "capacity");
}

async function draw(box, figure, canDraw) {
  const plot = box.querySelector(".chart-plot");
  if (!canDraw || !isDrawable(figure)) {
    if (plot.classList.contains("js-plotly-plot")) window.Plotly.purge(plot);
    const empty = document.createElement("p");
    empty.className = "chart-empty";
    empty.textContent = canDraw ? box.dataset.empty : "The chart cannot be drawn: a part of the page did not load. Load the page again, or see the table.";
    plot.replaceChildren(empty);
  } else {
    const times = timesOf(figure);
    const isCrowded = plot.clientWidth < 44 * figure.data.length; // numbers along the lines would overlap
    const traces = resolve(figure.data).map((trace) => (isCrowded && trace.mode ? { ...trace, mode: trace.mode.replace("+text", "") } : trace));
    const data = withSmoothing(traces, figure.smoothing).map((trace) => (times ? atLocalTimes(trace, times) : trace));
    if (figure.layout.height) plot.style.height = `${figure.layout.height}px`;
    plot.querySelector(".chart-empty")?.remove();
    const own = withRoom(resolve(figure.layout), paperWidth || plot.clientWidth);
    await window.Plotly.react(plot, data, layout(own, times), CONFIG);
    if (figure.layout.dragmode) {
      plot.removeAllListeners("plotly_relayout");
      plot.on("plotly_relayout", (change) => zoom(change, times));
    }
  }
  box.dataset.drawn = "1";
  resized.observe(plot);
  const note = box.querySelector(".chart-note");
  note.textContent = figure.note ?? "";
  note.hidden = !note.textContent;
  fillLegend(box.querySelector(".legend"), figure.legend);
  if (box.querySelector("details")?.open) fillTable(box, figure.table);
}

function fillLegend(list, entries) {
  if (!list) return;
  const items = entries.map((entry) => {
    const item = document.createElement("li");
    const swatch = document.createElement("span");
    swatch.className = "swatch";
    swatch.style.backgroundColor = colour(entry.colour);
    if (entry.mark) swatch.dataset.mark = entry.mark;
    swatch.style.color = readableOn(colour(entry.colour));
    const text = document.createElement(entry.job_id ? "a" : "span");
    text.textContent = entry.label;
    if (entry.job_id) text.href = `/jobs/${entry.job_id}/`;
    item.append(...(entry.colour ? [swatch] : []), text);
    return item;
  });
  // One of its links may have the focus.
  if (items.map((item) => item.outerHTML).join("") !== list.innerHTML) list.replaceChildren(...items);
}

function cell(tag, text) {
  const element = document.createElement(tag);
  element.textContent = text;
  if (tag === "th") element.scope = "col";
  return element;
}

function fillTable(box, table) {
  const head = document.createElement("tr");
  head.append(...table.columns.map((column) => cell("th", column)));
  const body = table.rows.map((row) => {
    const line = document.createElement("tr");
    line.append(...row.map((value, place) => cell("td", table.columns[place] === "Time" ? clockText(value) : value)));
    return line;
  });
  box.querySelector("thead").replaceChildren(head);
  box.querySelector("tbody").replaceChildren(...body);
  const note = box.querySelector(".table-note");
  const left = table.num_left_out ? ` The first ${table.num_left_out} rows are left out.` : "";
  note.textContent = table.rows.length ? `${table.note ?? ""}${left}`.trim() : "No figures yet.";
}

export async function drawAll() {
  const canDraw = await plotly;
  for (const box of document.querySelectorAll("[data-figure]")) {
    const figure = figures[box.dataset.figure];
    if (figure) draw(box, figure, canDraw);
  }
}

export async function refreshFigures() {
  const url = document.querySelector("[data-figures-url]")?.dataset.figuresUrl;
  if (!url || !document.querySelector("[data-figure]")) return;
  const hasNew = document.querySelector("[data-figure]:not([data-drawn])");
  const response = await fetch(url, {
    headers: etag && !hasNew ? { "If-None-Match": etag } : {}, cache: "no-store", signal: AbortSignal.timeout(15000), redirect: "error",
  });
  if (response.status === 304 || response.status === 400) return; // unchanged; of a filter
  if (!response.ok) throw new Error(response.statusText);
  etag = response.headers.get("ETag") ?? "";
  figures = await response.json();
  drawAll();
}

function plotlyLoaded() {
  const script = document.getElementById("plotly");
  return new Promise((resolve) => {
    if (!script || window.Plotly) resolve(Boolean(window.Plotly));
    for (const name of ["load", "error"]) script?.addEventListener(name, () => resolve(name === "load"));
  });
}

export function startCharts() {
  if (!document.querySelector("[data-figures-url]")) return;
  // Charts may come later, so their tables are not listened to one by one; "toggle" does not bubble.
  document.addEventListener("toggle", ({ target }) => {
    const box = target.closest("[data-figure]");
    const figure = box && figures[box.dataset.figure];
    if (figure) fillTable(box, figure.table);
  }, true);
  refreshFigures().catch(() => {}); // every page asks again once it is connected, or while it polls
  const dark = document.getElementById("dark");
  let media = "";
  // On paper charts have the light colours and another width.
  window.addEventListener("beforeprint", () => {
    media = dark.media;
    dark.media = "not all";
    paperWidth = PAPER_WIDTH;
    drawAll();
  });
  window.addEventListener("afterprint", () => {
    dark.media = media;
    paperWidth = 0;
    drawAll();
  });
}
