
// The data of the page: series of the runs, and their values on the chosen x axis.

const data = JSON.parse(document.getElementById("data").textContent);

// The quantities of the x axis: name, label, and the column of the clock; steps need none.
const X_AXES = [
  { name: "step", label: "step", column: null },
  { name: "tokens", label: "tokens", column: "tokens" },
  { name: "time", label: "training time", column: "seconds" },
];

function seriesOf(run, split, metric) {
  return data.runs[run].series.find(s => s.split === split && s.metric === metric);
}

// Tokens or seconds at each logged step of a run, by step.
function clockOf(run, column) {
  const clock = data.runs[run].clock;
  const values = clock[column] || [];
  return new Map(clock.steps.map((step, at) => [step, values[at]]));
}

// The points of a line: x, y and step of each; on a logarithmic axis without those that have no place.
function pointsOf(line, metric, view) {
  const series = seriesOf(line.run, line.split, metric);
  const points = { x: [], y: [], step: [] };
  if (!series) return points;
  const clock = view.axis.column && clockOf(line.run, view.axis.column);
  series.steps.forEach((step, at) => {
    const x = clock ? clock.get(step) : step;
    if (x === undefined || (view.logX && x <= 0)) return;
    // Steps that took no measurable time have one place.
    if (points.x.length && x <= points.x[points.x.length - 1]) return;
    const y = series.values[at];
    points.x.push(x);
    points.y.push(y === null || (view.logY && y <= 0) ? null : y);
    points.step.push(step);
  });
  return points;
}

// An exponential moving average that starts at the first value; gaps stay gaps.
function smoothed(values, weight) {
  let sum = 0, total = 0;
  return values.map(value => {
    if (value === null) return null;
    sum = weight * sum + (1 - weight) * value;
    total = weight * total + (1 - weight);
    return sum / total;
  });
}

// The place in ascending `values` that is nearest to `x`.
function nearest(values, x) {
  let low = 0, high = values.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (values[middle] < x) low = middle; else high = middle;
  }
  return Math.abs(values[low] - x) <= Math.abs(values[high] - x) ? low : high;
}

const wholeNumbers = new Intl.NumberFormat("en");

function formatValue(value) {
  if (value === null || value === undefined) return "not finite";
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size < 1e-3) return value.toExponential(3);
  if (size < 100) return value.toFixed(4);
  return size < 1e6 ? value.toFixed(1) : value.toExponential(3);
}

function formatSeconds(seconds) {
  if (seconds < 60) return seconds.toFixed(seconds < 10 ? 1 : 0) + " s";
  if (seconds < 3600) return (seconds / 60).toFixed(1) + " min";
  return (seconds / 3600).toFixed(2) + " h";
}

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}
