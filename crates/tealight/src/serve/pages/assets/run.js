"use strict";

// Connects the page of a run with the server, and adds the way back to the list and to the playground.
(() => {
  const link = (href, text) => {
    const element = document.createElement("a");
    element.href = href;
    element.textContent = text;
    return element;
  };
  const state = document.createElement("span");
  state.setAttribute("role", "status");
  const line = document.createElement("p");
  const name = location.pathname.split("/")[2];
  line.append(link("/", "runs and models"), " · ", link("/play?model=" + name, "playground"), " ", state);
  document.querySelector("header").append(line);

  const cursor = encodeURIComponent(tealight.runs[0].cursor);
  const source = new EventSource(location.pathname + "/events?cursor=" + cursor);
  source.onopen = () => { state.textContent = "· live"; };
  source.onmessage = event => tealight.update(0, JSON.parse(event.data));
  source.addEventListener("deleted", () => {
    source.close();
    state.textContent = "· the run was deleted";
  });
  source.onerror = () => {
    if (source.readyState !== EventSource.CLOSED) state.textContent = "· the server does not answer";
  };
})();
