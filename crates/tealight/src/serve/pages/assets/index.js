"use strict";

const rows = document.getElementById("rows");
const state = document.getElementById("state");

function row(item) {
  const name = encodeURIComponent(item.name);
  const links = make("td", {}, item.is_usable ? make("a", { href: "/play?model=" + name }, "playground") : "");
  const title = item.is_run ? make("a", { href: "/runs/" + name }, item.name) : item.name;
  const step = item.step === null ? "" : item.step.toLocaleString("en");
  const metric = item.metric === null ? "" : `${item.metric.name} ${item.metric.value.toFixed(4)}`;
  const started = item.started === null ? "" : make("time", { dateTime: item.started }, item.started.slice(0, 16).replace("T", " "));
  return make("tr", {}, make("th", { scope: "row" }, title), make("td", {}, item.task ?? ""),
    make("td", {}, item.state ?? "model"), make("td", {}, step), make("td", {}, metric), make("td", {}, started), links);
}

const source = new EventSource("/events");
source.onmessage = event => {
  const items = JSON.parse(event.data);
  rows.replaceChildren(...items.map(row));
  state.textContent = items.length === 0 ? "no runs and no models yet" : "";
};
source.onerror = () => { state.textContent = "the server does not answer"; };
