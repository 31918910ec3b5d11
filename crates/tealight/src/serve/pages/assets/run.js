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

  // New samples, results, checkpoints and charts come with a new page, which is asked for less often the longer it takes.
  let { structure } = tealight.runs[0];
  let waiting = false, pause = 300;
  async function renewIfOutdated() {
    if (waiting || structure === tealight.runs[0].structure) return;
    waiting = true;
    await new Promise(done => setTimeout(done, pause));
    const started = performance.now();
    try {
      const answer = await fetch(location.pathname);
      if (answer.ok) tealight.renew(new DOMParser().parseFromString(await answer.text(), "text/html"));
    } catch {
      // The server does not answer; `onerror` below says so.
    }
    pause = Math.max(2000, 20 * (performance.now() - started));
    waiting = false;
    if (!document.hidden) renewIfOutdated();
  }
  document.addEventListener("visibilitychange", renewIfOutdated);

  const cursor = encodeURIComponent(tealight.runs[0].cursor);
  const source = new EventSource(location.pathname + "/events?cursor=" + cursor);
  source.onopen = () => { state.textContent = "· live"; };
  source.onmessage = event => {
    const change = JSON.parse(event.data);
    tealight.update(0, change);
    structure = change.structure;
    renewIfOutdated();
  };
  source.addEventListener("deleted", () => {
    source.close();
    state.textContent = "· the run was deleted";
  });
  source.onerror = () => {
    if (source.readyState !== EventSource.CLOSED) state.textContent = "· the server does not answer";
  };
})();
