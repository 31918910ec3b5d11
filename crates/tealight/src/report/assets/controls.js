// The controls above the charts.

function buildControls() {
  const place = document.getElementById("controls");
  if (!place || place.firstChild) return;
  const axes = X_AXES.filter(axis => !axis.column ||
    data.runs.every(run => (run.clock[axis.column] || []).length > 0));
  const axis = element("select", {}, ...axes.map(one => element("option", { value: one.name }, one.label)));
  axis.addEventListener("change", () => change({ axis: axes[axis.selectedIndex] }));
  const smoothing = element("input", { type: "range", min: "0", max: "0.99", step: "0.01", value: "0" });
  const amount = element("output", {}, "0.00");
  smoothing.addEventListener("input", () => {
    amount.textContent = Number(smoothing.value).toFixed(2);
    change({ smoothing: Number(smoothing.value) });
  });
  const reset = element("button", { type: "button" }, "Show everything");
  reset.addEventListener("click", resetZoom);
  place.append(
    element("label", {}, "x axis ", axis),
    element("label", {}, "smoothing ", smoothing, amount),
    checkbox("logarithmic x", "logX"),
    checkbox("logarithmic y", "logY"),
    reset,
    element("p", { class: "hint" }, "Drag to zoom in all charts. Hovering shows logged values at their steps."
      + (data.runs.length > 1 ? " Solid lines are evaluations, dotted ones training." : "")),
  );
}

function checkbox(label, key) {
  const box = element("input", { type: "checkbox" });
  box.addEventListener("change", () => change({ [key]: box.checked }));
  return element("label", {}, box, " " + label);
}

function change(values) {
  Object.assign(view, values);
  drawAll();
}

buildControls();
