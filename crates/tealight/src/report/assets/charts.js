// The charts: uPlot in the place of the static pictures.

const N_TONES = 7;
const DASHES = [[], [7, 3], [2, 2], [8, 2, 2, 2]];
const darkness = matchMedia("(prefers-color-scheme: dark)");

// How all charts are shown; the controls change it.
const view = { axis: X_AXES[0], logX: false, logY: false, smoothing: 0 };
const shown = new Map();

function theme() {
  const style = getComputedStyle(document.documentElement);
  const of = name => style.getPropertyValue(name).trim();
  return { text: of("--text"), muted: of("--muted"), grid: of("--grid"), bad: of("--bad"),
    palette: Array.from({ length: N_TONES }, (_, at) => of("--tone-" + at)) };
}

// Colour and dashes: of one run a colour for each split, of several a colour for each group.
function styleOf(line, at, palette) {
  const isOne = line.group === null;
  const index = isOne ? at : line.group;
  const turn = isOne ? 0 : Math.floor(index / palette.length);
  const isTraining = line.split === "train";
  return { colour: palette[index % palette.length], width: isTraining ? 1.2 : 2,
    dash: isTraining && !isOne ? [2, 2] : DASHES[turn % DASHES.length] };
}

// The lines of a chart with their points: raw ones, smoothed ones before them, limits.
function linesOf(chart, colours) {
  const lines = chart.lines.map((line, at) => ({ label: line.label, group: line.group, ...styleOf(line, at, colours.palette),
    points: pointsOf(line, chart.metric, view), isLimit: false }));
  const ends = lines.flatMap(line => [line.points.x[0], line.points.x[line.points.x.length - 1]])
    .filter(x => x !== undefined);
  const first = Math.min(...ends), last = Math.max(...ends);
  const limits = chart.limits.filter(limit => !view.logY || limit.value > 0).map((limit, at) => ({
    label: limit.name, group: null, colour: limit.name.startsWith("Bayes") ? colours.text : colours.muted, width: 1.5,
    dash: DASHES[1 + at % 3], isLimit: true,
    points: { x: first < last ? [first, last] : [first], y: first < last ? [limit.value, limit.value] : [limit.value], step: [] },
  }));
  return lines.concat(ends.length ? limits : []);
}

// Each line as series of uPlot: when smoothed, the raw line behind is pale.
function seriesFor(lines) {
  const series = [{}], tables = [];
  for (const line of lines) {
    const isSmoothed = view.smoothing > 0 && !line.isLimit && line.points.x.length > 2;
    const common = { label: line.label, stroke: line.colour, dash: line.dash, width: line.width,
      points: { show: line.points.x.length < 40 && !line.isLimit, size: 5 } };
    tables.push([line.points.x, line.points.y]);
    series.push(isSmoothed ? { ...common, alpha: 0.25, width: 1, points: { show: false } } : common);
    line.series = [series.length - 1];
    if (isSmoothed) {
      tables.push([line.points.x, smoothed(line.points.y, view.smoothing)]);
      series.push({ ...common, points: { show: false } });
      line.series.push(series.length - 1);
    }
  }
  return { series, table: uPlot.join(tables) };
}

// Vertical lines at skipped steps, and at steps that a roll-back undid.
function drawMarks(plot, colours) {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.strokeStyle = colours.bad;
  ctx.lineWidth = devicePixelRatio;
  data.runs.forEach((run, at) => {
    const clock = view.axis.column && clockOf(at, view.axis.column);
    for (const mark of run.marks) {
      const step = mark.kind === "skipped" ? mark.step : mark.from || mark.step;
      const x = clock ? clock.get(mark.step) : step;
      if (x === undefined || x < plot.scales.x.min || x > plot.scales.x.max) continue;
      const place = plot.valToPos(x, "x", true);
      ctx.setLineDash(mark.kind === "skipped" ? [2 * devicePixelRatio, 4 * devicePixelRatio] : []);
      ctx.beginPath();
      ctx.moveTo(place, bbox.top);
      ctx.lineTo(place, bbox.top + bbox.height);
      ctx.stroke();
    }
  });
  ctx.restore();
}

function axisValues(plot, splits) {
  if (view.axis.name === "time") return splits.map(x => x === null ? "" : formatSeconds(x));
  return splits.map(x => x === null ? "" : x >= 1e6 ? (x / 1e6) + " M" : wholeNumbers.format(x));
}

function yLabel(y) {
  if (y === null) return "";
  const size = Math.abs(y);
  return size !== 0 && (size < 1e-5 || size >= 1e6) ? y.toExponential(0) : String(+y.toPrecision(6));
}

const AXIS_FONT = "12px system-ui, sans-serif";
const ruler = document.createElement("canvas").getContext("2d");

// The width of the longest label of an axis in pixels.
function widest(labels) {
  ruler.font = AXIS_FONT;
  return Math.ceil(Math.max(0, ...labels.map(label => ruler.measureText(label).width)));
}

// Room for the right half of the last label, which is centred at the end of the axis.
function rightPadding(xs) {
  return Math.max(12, 6 + widest(axisValues(null, xs.slice(-1))) / 2);
}

function optionsFor(chart, { series, table }, width, colours) {
  const axis = { stroke: colours.muted, font: AXIS_FONT,
    grid: { stroke: colours.grid, width: 1 }, ticks: { stroke: colours.grid, width: 1 } };
  return {
    width, height: 260, series, padding: [12, rightPadding(table[0]), 0, 0],
    scales: { x: { time: false, distr: view.logX ? 3 : 1 }, y: { distr: view.logY ? 3 : 1 } },
    axes: [{ ...axis, label: view.axis.label, labelSize: 22, labelFont: axis.font, size: 32, values: axisValues, space: 70 },
      { ...axis, size: (plot, labels) => Math.max(44, 18 + widest(labels || [])), values: (plot, splits) => splits.map(yLabel) }],
    legend: { show: false },
    cursor: { sync: { key: "charts", scales: ["x", null] }, drag: { x: true, y: false },
      points: { show: false } },
    hooks: { draw: [plot => drawMarks(plot, colours)], setCursor: [plot => readOut(chart.metric, plot)],
      setScale: [(plot, key) => key === "x" && zoomOthers(chart.metric, plot)] },
  };
}

// What is chosen in one chart is shown in all.
function zoomOthers(metric, plot) {
  const { min, max } = plot.scales.x;
  for (const [other, { plot: theirs }] of shown) {
    const is = theirs && theirs.scales.x;
    if (other !== metric && is && min !== null && (is.min !== min || is.max !== max)) theirs.setScale("x", { min, max });
  }
}

// Writes the logged value that is nearest to the cursor beside each name.
function readOut(metric, plot) {
  const entry = shown.get(metric);
  if (!entry || !entry.values) return;
  const { left } = plot.cursor;
  const x = left >= 0 ? plot.posToVal(left, "x") : null;
  entry.lines.forEach((line, at) => {
    const { points } = line;
    if (line.isLimit) { entry.values[at].textContent = formatValue(points.y[0]); return; }
    if (x === null || !points.x.length) { entry.values[at].textContent = ""; return; }
    const place = nearest(points.x, x);
    const value = seriesValue(metric, entry.chart.lines[at], points.step[place]);
    entry.values[at].textContent = formatValue(value) + " at step " + wholeNumbers.format(points.step[place]);
  });
  if (entry.nearest) entry.nearest.textContent = x === null ? "" : nearestTo(entry, x);
}

// The name and the value of the shown line that is nearest to the cursor.
function nearestTo(entry, x) {
  const { plot, lines } = entry;
  let best = "", least = Infinity;
  lines.forEach((line, at) => {
    if (line.isLimit || entry.hidden.has(line.label) || !line.points.x.length) return;
    const y = line.points.y[nearest(line.points.x, x)];
    const distance = y === null ? Infinity : Math.abs(plot.valToPos(y, "y") - plot.cursor.top);
    if (distance < least) [least, best] = [distance, line.label + ": " + entry.values[at].textContent];
  });
  return best;
}

// The logged value, also where a logarithmic axis has no place for it.
function seriesValue(metric, line, step) {
  const series = seriesOf(line.run, line.split, metric);
  return series.values[nearest(series.steps, step)];
}

// The dashes of a line as a background.
function stripes(colour, dash) {
  let at = 0;
  const stops = (dash.length ? dash : [1]).map((length, index) => {
    const from = at;
    at += length;
    return (index % 2 ? "transparent " : colour + " ") + from + "px " + at + "px";
  });
  return "repeating-linear-gradient(90deg, " + stops.join(", ") + ")";
}

// Buttons that show and hide lines; a value beside each. Lines of groups are in the legend of the page.
function legendFor(chart, lines, entry) {
  const list = element("ul", { class: "legend" });
  entry.values = lines.map((line, at) => {
    if (line.group !== null && !line.isLimit) return { textContent: "" };
    const swatch = element("span", { class: "swatch" });
    swatch.style.backgroundImage = stripes(line.colour, line.dash);
    const isHidden = entry.hidden.has(line.label);
    const button = element("button", { type: "button", "aria-pressed": String(!isHidden) }, swatch, line.label);
    const value = element("span", { class: "at-cursor" });
    button.addEventListener("click", () => toggle(entry, at, button));
    list.append(element("li", {}, button, value));
    return value;
  });
  return list;
}

// Shows or hides the lines of a group in all charts.
function toggleGroup(group, button) {
  const show = button.getAttribute("aria-pressed") === "false";
  button.setAttribute("aria-pressed", String(show));
  for (const entry of shown.values()) {
    for (const line of entry.lines.filter(line => line.group === group)) {
      if (show) entry.hidden.delete(line.label); else entry.hidden.add(line.label);
      line.series.forEach(series => entry.plot.setSeries(series, { show }));
    }
  }
}

function toggle(entry, at, button) {
  const line = entry.lines[at];
  const show = entry.hidden.has(line.label);
  if (show) entry.hidden.delete(line.label); else entry.hidden.add(line.label);
  button.setAttribute("aria-pressed", String(show));
  line.series.forEach(series => entry.plot.setSeries(series, { show }));
}

// Arrow keys move the cursor from point to point, + and − zoom, 0 shows everything, Escape takes the cursor away.
function onKey(entry, event) {
  const { plot } = entry;
  const xs = plot.data[0];
  const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key] * (event.shiftKey ? 10 : 1);
  const at = plot.cursor.idx === null || plot.cursor.idx === undefined ? xs.length - 1 : plot.cursor.idx;
  if (by) moveTo(plot, Math.min(xs.length - 1, Math.max(0, at + by)));
  else if (event.key === "Home") moveTo(plot, 0);
  else if (event.key === "End") moveTo(plot, xs.length - 1);
  else if (event.key === "Escape") plot.setCursor({ left: -10, top: -10 });
  else if (event.key === "0") resetZoom();
  else if (event.key === "+" || event.key === "-") zoomAround(plot, xs[at], event.key === "+" ? 0.5 : 2);
  else return;
  event.preventDefault();
  entry.announcement.textContent = entry.lines.map((line, i) => line.label + ": " + entry.values[i].textContent).join("; ");
}

function moveTo(plot, at) {
  const left = plot.valToPos(plot.data[0][at], "x");
  plot.setCursor({ left, top: plot.over.clientHeight / 2 });
}

function zoomAround(plot, x, factor) {
  const { min, max } = plot.scales.x;
  plot.setScale("x", { min: x - (x - min) * factor, max: x + (max - x) * factor });
}

function resetZoom() {
  for (const { plot } of shown.values()) {
    const xs = plot.data[0];
    if (xs.length > 1) plot.setScale("x", { min: xs[0], max: xs[xs.length - 1] });
  }
}

// Draws a chart anew in its figure.
function draw(chart) {
  const figure = document.getElementById("chart-" + chart.metric);
  if (!figure) return;
  const entry = shown.get(chart.metric) || { hidden: new Set() };
  entry.chart = chart;
  if (!entry.box) {
    entry.box = element("div", { class: "plot", tabindex: "0", role: "group",
      "aria-label": chart.title + ": chart; arrow keys move from point to point, plus and minus zoom, 0 shows everything" });
    entry.announcement = element("p", { class: "unseen", "aria-live": "polite" });
    figure.insertBefore(entry.box, figure.querySelector("details"));
    figure.insertBefore(entry.announcement, entry.box);
    if (chart.lines.some(line => line.group !== null)) {
      entry.nearest = element("p", { class: "nearest" });
      figure.insertBefore(entry.nearest, entry.box);
    }
    figure.classList.add("interactive");
    entry.box.addEventListener("keydown", event => onKey(entry, event));
    new ResizeObserver(() => entry.plot && entry.plot.setSize({ width: entry.box.clientWidth, height: 260 })).observe(entry.box);
  }
  if (entry.plot) entry.plot.destroy();
  if (entry.legend) entry.legend.remove();
  const colours = theme();
  entry.lines = linesOf(chart, colours);
  const drawn = seriesFor(entry.lines);
  entry.legend = legendFor(chart, entry.lines, entry);
  figure.insertBefore(entry.legend, entry.nearest || entry.box);
  shown.set(chart.metric, entry);
  entry.plot = new uPlot(optionsFor(chart, drawn, entry.box.clientWidth || 600, colours), drawn.table, entry.box);
  entry.lines.forEach(line => {
    if (entry.hidden.has(line.label)) line.series.forEach(at => entry.plot.setSeries(at, { show: false }));
  });
  readOut(chart.metric, entry.plot);
}

function drawAll() {
  data.charts.forEach(draw);
}

drawAll();
darkness.addEventListener("change", drawAll);
for (const item of document.querySelectorAll(".groups [data-group]")) {
  const button = element("button", { type: "button", "aria-pressed": "true" }, ...item.childNodes);
  button.addEventListener("click", () => toggleGroup(Number(item.dataset.group), button));
  item.append(button);
}
