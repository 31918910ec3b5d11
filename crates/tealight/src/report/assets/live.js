// What a server tells a live page; the documentation of the module `report` shows a change.

function appendTo(run, change) {
  if (change.restart) {
    run.series = [];
    run.clock = { steps: [], seconds: [] };
    run.marks = [];
  }
  for (const column of ["steps", "seconds", "tokens"]) {
    if (change.clock[column]) run.clock[column] = (run.clock[column] || []).concat(change.clock[column]);
  }
  for (const { split, metric, steps, values } of change.series) {
    const known = run.series.find(s => s.split === split && s.metric === metric);
    if (known) {
      known.steps = known.steps.concat(steps);
      known.values = known.values.concat(values);
    } else {
      run.series.push({ split, metric, steps, values });
    }
  }
  run.marks = run.marks.concat(change.marks);
  run.cursor = change.cursor;
}

function showFacts(index, facts) {
  for (const place of document.querySelectorAll("[data-fact]")) {
    const [run, ...name] = place.dataset.fact.split("/");
    const text = facts[name.join("/")];
    if (Number(run) !== index || text === undefined || place.textContent === text) continue;
    place.textContent = text;
    if (place.dataset.state) place.dataset.state = text;
  }
}

// Lines that appear after the page was made, such as those of the first evaluation.
function addLines(index, change) {
  for (const { split, metric } of change.series) {
    const chart = data.charts.find(one => one.metric === metric);
    if (!chart) { tealight.outdated = true; continue; }
    if (chart.lines.some(line => line.run === index && line.split === split)) continue;
    const label = data.runs.length === 1 ? split : data.runs[index].name + " · " + split;
    chart.lines.push({ run: index, split, label });
  }
}

const tealight = window.tealight = {
  // As in the data of the page; `runs[i].cursor` is where its log ended.
  runs: data.runs,
  // Whether a chart is missing that only a new page has.
  outdated: false,
  // Takes a change of run `index`: redraws the charts that it touches, and replaces numbers.
  update(index, change) {
    appendTo(data.runs[index], change);
    addLines(index, change);
    showFacts(index, change.facts);
    const touched = new Set(change.series.map(series => series.metric));
    data.charts.filter(chart => change.restart || touched.has(chart.metric)).forEach(draw);
  },
};
