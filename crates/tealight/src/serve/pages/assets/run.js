"use strict";

const WIDTH = 400, HEIGHT = 200, LEFT = 52, BOTTOM = 22;
const SVG = "http://www.w3.org/2000/svg";
const status = document.getElementById("status");
const charts = document.getElementById("charts");
const last = document.getElementById("last");
/** metric → split → points [step, value] */
let series = new Map();
/** Keys of a line that are no metrics. */
const OTHERS = new Set(["step", "split", "from", "number"]);

function add(line) {
  for (const [metric, value] of Object.entries(line)) {
    if (OTHERS.has(metric) || typeof value !== "number") continue;
    if (!series.has(metric)) series.set(metric, new Map());
    const splits = series.get(metric);
    if (!splits.has(line.split)) splits.set(line.split, []);
    splits.get(line.split).push([line.step, value]);
  }
}

function svg(tag, attributes, text) {
  const element = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

const short = value => Number(value.toPrecision(3)).toString();

function chart(metric, splits) {
  const points = [...splits.values()].flat();
  const steps = points.map(point => point[0]), values = points.map(point => point[1]);
  const low = arrayMin(values), high = arrayMax(values), end = Math.max(1, arrayMax(steps));
  const x = step => LEFT + (WIDTH - LEFT - 6) * step / end;
  const y = value => 8 + (HEIGHT - BOTTOM - 12) * (high === low ? 0.5 : (high - value) / (high - low));
  const names = [...splits.keys()];
  const label = `${metric}: ` + names.map(split => `${split} ${short(splits.get(split).at(-1)[1])}`).join(", ");
  const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label });
  for (const value of high === low ? [low] : [low, high]) {
    picture.append(svg("text", { x: LEFT - 4, y: y(value) + 4, "text-anchor": "end", "font-size": 11, fill: "currentColor" }, short(value)));
  }
  picture.append(svg("text", { x: WIDTH - 6, y: HEIGHT - 4, "text-anchor": "end", "font-size": 11, fill: "currentColor" }, `step ${end}`));
  names.forEach((split, at) => {
    const line = splits.get(split).map(([step, value]) => `${x(step).toFixed(1)},${y(value).toFixed(1)}`).join(" ");
    const colour = at === 0 ? "var(--accent)" : "var(--second)";
    picture.append(svg("polyline", { points: line, fill: "none", stroke: colour, "stroke-width": 1.5, "stroke-dasharray": at > 1 ? "4 3" : "none" }));
  });
  return make("figure", { className: "panel" }, make("figcaption", {}, label), picture);
}

const arrayMin = values => values.reduce((a, b) => Math.min(a, b), Infinity);
const arrayMax = values => values.reduce((a, b) => Math.max(a, b), -Infinity);

function draw() {
  charts.replaceChildren(...[...series].map(([metric, splits]) => chart(metric, splits)));
}

const source = new EventSource(location.pathname + "/events");
source.onmessage = event => {
  const { restart, lines, state, step } = JSON.parse(event.data);
  if (restart) series = new Map();
  lines.forEach(add);
  status.textContent = state;
  last.textContent = step === null ? "no line yet" : `step ${step.toLocaleString()}`;
  if (restart || lines.length > 0) draw();
  if (state === "deleted") source.close();
};
source.onerror = () => { if (source.readyState !== EventSource.CLOSED) status.textContent = "the server does not answer"; };
