"use strict";

/** An element with properties and children; texts become text nodes, never markup. */
function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(properties)) {
    if (key.includes("-") || key === "role") element.setAttribute(key, value);
    else element[key] = value;
  }
  element.append(...children);
  return element;
}

/** The answer of the server to `body`; an error has the rule as its message. */
async function ask(path, body, options = {}) {
  const request = body === undefined ? {} : {
    method: "POST",
    headers: { "content-type": options.type ?? "application/json" },
    body: options.type ? body : JSON.stringify(body),
  };
  const response = await fetch(path, request);
  if (options.stream && response.ok) return response;
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error);
  return answer;
}

const percent = value => (100 * value).toFixed(1) + " %";
const modelPath = name => "/models/" + encodeURIComponent(name);

/** Calls `on` with each object of a stream of server-sent events. */
async function readEvents(response, on) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let pending = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    pending += value;
    const events = pending.split("\n\n");
    pending = events.pop();
    for (const event of events) {
      if (event.startsWith("data: ")) on(JSON.parse(event.slice(6)));
    }
  }
}
