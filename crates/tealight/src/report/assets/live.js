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
    // A chart that only a new page has.
    if (!chart) continue;
    if (chart.lines.some(line => line.run === index && line.split === split)) continue;
    const label = data.runs.length === 1 ? split : data.runs[index].name + " · " + split;
    chart.lines.push({ run: index, group: null, split, label });
  }
}

// Replaces a part of the page; its open details stay open. A part that has the focus is left for the next time.
function replace(old, fresh) {
  if (old.contains(document.activeElement)) return;
  const [before, after] = [old, fresh].map(part => [...part.querySelectorAll("details")]);
  if (before.length === after.length) after.forEach((details, at) => { details.open = before[at].open; });
  old.replaceWith(fresh);
}

// Adds the figures of charts that are not there yet, in their order.
function addFigures(old, fresh) {
  const place = old.querySelector(".charts");
  let next = place.firstElementChild;
  for (const figure of fresh.querySelectorAll("figure.chart")) {
    if (document.getElementById(figure.id)) next = document.getElementById(figure.id).nextElementSibling;
    else place.insertBefore(figure, next);
  }
}

const tealight = window.tealight = {
  // As in the data of the page: `runs[i].cursor` is where its log ended, `runs[i].structure` tells which parts there are.
  runs: data.runs,
  // Takes a change of run `index`: redraws the charts that it touches, and replaces numbers.
  update(index, change) {
    appendTo(data.runs[index], change);
    addLines(index, change);
    showFacts(index, change.facts);
    const touched = new Set(change.series.map(series => series.metric));
    data.charts.filter(chart => change.restart || touched.has(chart.metric)).forEach(draw);
  },
  // Takes over the parts of a newer page of the same runs. Charts that are shown stay as they are.
  renew(page) {
    const fresh = JSON.parse(page.getElementById("data").textContent);
    fresh.runs.forEach((run, at) => { data.runs[at].structure = run.structure; });
    data.charts = fresh.charts;
    let before = document.querySelector("main > nav");
    replace(before, page.querySelector("main > nav"));
    before = document.querySelector("main > nav");
    for (const section of page.querySelectorAll("main > section")) {
      const shown = document.getElementById(section.id);
      if (!shown) before.after(section);
      else if (section.id === "charts") addFigures(shown, section);
      else replace(shown, section);
      before = document.getElementById(section.id);
    }
    buildControls();
    drawAll();
  },
};
