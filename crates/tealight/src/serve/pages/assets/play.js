"use strict";

const text = document.getElementById("text");
const picture = document.getElementById("picture");
const columns = document.getElementById("columns");
const about = document.getElementById("about");
const another = document.getElementById("another");
/** Ranges of characters of the text that are hidden from the models. */
let hidden = [];
/** Whether a token in the middle is to be hidden once the tokens are known. */
let hidesOne = false;
/** The example that is shown, none once the user has changed the input; the model of the examples; the picture of one. */
let example = null, exampleOf = null, examplePicture = null;
/** The kinds of inputs that the user has written or chosen. */
const ofUser = new Set();
let days = "RCSRCSRCSR";
const WEATHER = { R: "🌧️", C: "☁️", S: "☀️" };

/** The text with a mask in place of each hidden range. */
function maskedText(mask) {
  let result = text.value;
  for (const [start, end] of [...hidden].sort((a, b) => b[0] - a[0])) {
    result = result.slice(0, start) + mask + result.slice(end);
  }
  return result;
}

/** What is said below an example: where it comes from, and the right answer. */
function aboutExample(task, { is_of_run, truth }) {
  if (!is_of_run) return "An example sentence: write your own.";
  const answers = { "fill-mask": "the hidden token is", "weather-forecast": "the next day was", "text-classification": "its label is", "token-classification": "its entities are",
    "image-classification": "its class is" };
  return "A held-out example of the run" + (truth && answers[task] ? `: ${answers[task]} “${truth.trim()}”.` : ".");
}

function kindOf(task) {
  return { "image-classification": "picture", "weather-forecast": "days" }[task] ?? "text";
}

/** Says what the example is, of which the user may have changed a part. */
function describeExample(part = {}) {
  about.textContent = example ? aboutExample(exampleOf.task, { ...example, ...part }) : "";
  another.hidden = !exampleOf?.examples.some(one => one !== example);
}

/** The user has changed the input, which is no example any more. */
function leaveExample(kind) {
  ofUser.add(kind);
  example = null;
  hidden = [];
  hidesOne = false;
  describeExample();
}

/** Shows an example of a model as the input. */
function showExample(model, one) {
  example = one;
  exampleOf = model;
  examplePicture = null;
  hidden = [];
  hidesOne = false;
  ofUser.delete(kindOf(model.task));
  describeExample();
  if (model.task === "weather-forecast") {
    days = Object.entries(WEATHER).reduce((text, [letter, sign]) => text.replaceAll(sign, letter), one.text);
  } else if (model.task === "image-classification") {
    examplePicture = one.picture && blobOf(one.picture);
    picture.value = "";
  } else {
    text.value = one.text;
    if (one.hidden) hidden = [one.hidden];
    hidesOne = model.task === "fill-mask" && !one.hidden && !one.text.includes(model.mask_token);
  }
}

/** The content of a `data:` address. */
function blobOf(address) {
  const [head, bytes] = address.split(",");
  return new Blob([Uint8Array.from(atob(bytes), letter => letter.charCodeAt(0))], { type: head.slice(5).split(";")[0] });
}

/** The token in the middle that has the most letters among its neighbours. */
function middleOf(tokens) {
  const middle = Math.floor(tokens.length / 2);
  const near = tokens.slice(Math.max(0, middle - 2), middle + 3);
  return near.reduce((best, one) => one.end - one.start > best.end - best.start ? one : best, near[0]);
}

/** A token with its spaces and ends of lines made visible, if it has nothing else. */
function visible(token) {
  return token.trim() === "" ? token.replace(/\n/g, "↵").replace(/\t/g, "⇥").replace(/ /g, "␣") || "∅" : token;
}

/** A line with a name and a bar from 0 to 1, or two, and what is `said` of the value. */
function bar(name, value, second, said = percent) {
  const bars = make("span", {});
  for (const [one, kind] of [[value, ""], [second, "second"]]) {
    if (one === undefined) continue;
    const line = make("i", { className: kind });
    line.style.width = 100 * Math.max(0, Math.min(1, one)) + "%";
    bars.append(line);
  }
  const number = second === undefined ? said(value) : `${said(value)} ${said(second)}`;
  return make("div", { className: "bar" }, make("span", { title: name }, name), bars, make("span", {}, number));
}

/** What the heads of a model read: hovering or focusing a token shows its row. */
function heads(maps) {
  const layer = make("select", {}, ...maps.layers.map((one, at) => make("option", { value: at }, one.name)));
  layer.value = maps.layers.length - 1;
  const head = make("select", {});
  const tokens = make("div", { className: "tokens" });
  function names() {
    const n = maps.layers[layer.value].weights.length;
    head.replaceChildren(make("option", { value: "mean" }, "mean"),
      ...Array.from({ length: n }, (_, at) => make("option", { value: at }, String(at + 1))));
    show();
  }
  function row(query) {
    const { weights, keys } = maps.layers[layer.value];
    const chosen = head.value === "mean" ? weights : [weights[head.value]];
    return keys.map((_, key) => chosen.reduce((sum, one) => sum + one[query][key], 0) / chosen.length);
  }
  function show() {
    const { queries } = maps.layers[layer.value];
    const spans = queries.map((token, at) => {
      const span = make("span", { tabIndex: 0 }, visible(token));
      const light = () => row(at).forEach((weight, key) => {
        spans[key].style.background = `color-mix(in srgb, var(--second) ${Math.round(70 * Math.min(1, weight))}%, transparent)`;
        spans[key].title = `${queries[at]} reads ${percent(weight)} from ${queries[key]}`;
        spans[key].classList.toggle("reading", key === at);
      });
      span.onmouseenter = light;
      span.onfocus = light;
      return span;
    });
    tokens.replaceChildren(...spans);
    spans[0]?.onfocus();
  }
  layer.onchange = names;
  head.onchange = show;
  names();
  return make("section", {}, make("h2", {}, "What the heads read"),
    make("label", {}, "layer", layer), make("label", {}, "head", head), tokens,
    make("p", { className: "dim" }, "Point at a token, which gets a frame: the stronger the colour of a token, the more is read from it."));
}

async function attention(model, sequence) {
  try {
    return heads(await ask(modelPath(model.name) + "/attention", { text: sequence }));
  } catch (error) {
    return make("p", { className: "dim" }, error.message);
  }
}

async function tokenButtons(model) {
  const all = await ask(modelPath(model.name) + "/tokens", { text: text.value });
  const tokens = all.filter(token => token.end > token.start);
  if (hidesOne && tokens.length > 0) {
    const { start, end } = middleOf(tokens);
    hidden = [[start, end]];
    hidesOne = false;
  }
  const buttons = tokens.map(token => {
    const range = [token.start, token.end];
    const at = hidden.findIndex(([start, end]) => start < range[1] && range[0] < end);
    const button = make("button", { type: "button", "aria-pressed": String(at >= 0) }, token.token);
    button.onclick = () => {
      if (at >= 0) hidden.splice(at, 1); else hidden.push(range);
      describeExample({ truth: null });
      refresh();
    };
    return button;
  });
  return make("div", { className: "tokens", role: "group", "aria-label": "tokens: click to hide" }, ...buttons);
}

const views = {
  async "fill-mask"(model) {
    const parts = [make("p", { className: "dim" }, "Click a token to hide it, or to show it again."), await tokenButtons(model)];
    const masked = maskedText(model.mask_token);
    if (masked.includes(model.mask_token) || /\[MASK\]|<mask>/.test(masked)) {
      const answer = await ask(modelPath(model.name), { inputs: masked, parameters: { top_k: 8 } });
      const masks = Array.isArray(answer[0]) ? answer : [answer];
      masks.forEach((candidates, at) => parts.push(
        make("h2", {}, masks.length > 1 ? `Candidates for mask ${at + 1}` : "Candidates"),
        ...candidates.map(one => bar(one.token_str, one.score))));
    }
    parts.push(await attention(model, masked));
    return parts;
  },
  async "text-classification"(model) {
    const [scores] = await ask(modelPath(model.name), { inputs: text.value });
    const parts = [make("h2", {}, "Labels"), ...scores.map(one => bar(one.label, one.score))];
    // With one output, the model may be a cross-encoder.
    if (scores.length === 1) {
      parts.push(otherTexts("passages", "Passages for this query", async texts => {
        const ranks = await ask(modelPath(model.name) + "/rerank", { query: text.value, texts, truncate: true });
        return ranks.map(one => [texts[one.index], one.score]);
      }));
    }
    return [...parts, await attention(model, text.value)];
  },
  async "token-classification"(model) {
    const parameters = { aggregation_strategy: "word" };
    const spans = await ask(modelPath(model.name), { inputs: text.value, parameters });
    // Places count characters, and a character may be two units of a string.
    const characters = Array.from(text.value), marked = make("p", { className: "written" });
    let end = 0;
    for (const span of spans) {
      marked.append(characters.slice(end, span.start).join(""), tagged(span, characters.slice(span.start, span.end).join("")));
      end = span.end;
    }
    marked.append(characters.slice(end).join(""));
    const bars = spans.map(one => bar(`${one.word} (${one.entity_group})`, one.score));
    return [marked, make("h2", {}, "Entities"), ...(bars.length > 0 ? bars : [make("p", { className: "dim" }, "None.")]),
      await tagsOfTokens(model, characters), await attention(model, text.value)];
  },
  async "feature-extraction"(model) {
    const answer = await ask(modelPath(model.name) + "/pipeline/feature-extraction", { inputs: text.value });
    const numbers = typeof answer[0] === "number" ? answer : answer[0][0];
    const compared = otherTexts("texts", "Texts to compare with", async texts => {
      const inputs = { source_sentence: text.value, sentences: texts };
      const cosines = await ask(modelPath(model.name) + "/pipeline/sentence-similarity", { inputs });
      return texts.map((one, at) => [one, cosines[at]]).sort((a, b) => b[1] - a[1]);
    });
    return [make("p", {}, `${numbers.length} numbers, the first: ${numbers.slice(0, 5).map(one => one.toFixed(3)).join(", ")} …`),
      compared, await attention(model, text.value)];
  },
  async "image-classification"(model) {
    const file = picture.files[0] ?? examplePicture;
    if (!file) return [make("p", { className: "dim" }, "Choose a picture above.")];
    const scores = await ask(modelPath(model.name), file, { type: "application/octet-stream" });
    const shown = make("img", { src: URL.createObjectURL(file), alt: "the chosen picture", className: "chosen" });
    shown.onload = () => URL.revokeObjectURL(shown.src);
    return [shown, ...scores.map(one => bar(one.label, one.score))];
  },
  async "text-generation"(model) {
    const number = (name, value, step, min) => make("input", { type: "number", name, value, step, min });
    const inputs = { max_tokens: number("max_tokens", 40, 1, 1), temperature: number("temperature", 0.8, 0.1, 0),
      top_k: number("top_k", "", 1, 1), top_p: number("top_p", "", 0.05, 0), seed: number("seed", 0, 1, 0) };
    const labels = Object.entries(inputs).map(([name, input]) => make("label", {}, name.replace("_", "-"), input));
    const written = make("p", { className: "written", "aria-live": "polite" });
    const legend = make("p", { className: "dim", hidden: true }, "likely ", make("span", { className: "scale", "aria-hidden": "true" }),
      " unlikely: the stronger the colour of a written token, the less likely the model found it. Point at one to see what else was likely.");
    const details = make("div", {});
    const button = make("button", { type: "button" }, "Continue");
    const go = () => report(details, async () => {
      const body = { text: text.value };
      for (const [name, input] of Object.entries(inputs)) if (input.value !== "") body[name] = Number(input.value);
      written.replaceChildren(make("span", { className: "dim" }, text.value));
      details.replaceChildren();
      legend.hidden = true;
      const response = await ask(modelPath(model.name) + "/continuation", body, { stream: true });
      await readEvents(response, event => {
        if (event.error) throw new Error(event.error);
        if (event.text) written.append(event.text);
        if (event.choices) written.replaceChildren(written.firstChild, ...event.choices.map(choice => tokenOf(choice, details)));
        if (event.choices) legend.hidden = false;
      });
    });
    button.onclick = go;
    if (example?.is_of_run) go();
    return [make("div", {}, ...labels), button, written, legend, details, await attention(model, text.value)];
  },
  async "weather-forecast"(model) {
    const parts = [make("p", { className: "dim" }, "Click a day to change it.")];
    const buttons = [...days].map((day, at) => {
      const button = make("button", { type: "button", "aria-label": `day ${at + 1}: ${day}` }, WEATHER[day]);
      button.onclick = () => {
        changeDays(days.slice(0, at) + { R: "C", C: "S", S: "R" }[day] + days.slice(at + 1));
      };
      return button;
    });
    const change = (label, next) => {
      const button = make("button", { type: "button" }, label);
      button.onclick = () => changeDays(next);
      return button;
    };
    parts.push(make("div", { className: "tokens" }, ...buttons, change("add a day", days + "S"), change("remove", days.slice(0, -1) || "S")));
    const answer = await ask(modelPath(model.name) + "/forecast", { days, n_days: 14, temperature: 1 });
    parts.push(make("h2", {}, "The next day"), ...Object.values(WEATHER).map((day, at) => bar(day, answer.next[at], answer.exact?.[at])));
    if (answer.exact) parts.push(make("p", { className: "dim" }, "Above the model, below the exact probability of the rule."));
    if (answer.n_unknown > 0) parts.push(make("p", { className: "dim" }, `The model reads ${answer.n_unknown} more days: averaged over days that it draws.`));
    parts.push(make("p", {}, "then ", answer.days), await attention(model, days));
    return parts;
  },
};

/** The texts that the user has written in each field for further texts, by the name of the field. */
const furtherTexts = {};

/** A field for further texts, one on each line; below it stand the pairs of a text and its score that `rank` gives. */
function otherTexts(field, title, rank) {
  const area = make("textarea", { value: furtherTexts[field] ?? "", placeholder: "one on each line", spellcheck: false, "aria-label": title });
  const place = make("div", { "aria-live": "polite" });
  let version = 0;
  const show = () => report(place, async () => {
    const current = ++version;
    furtherTexts[field] = area.value;
    const texts = area.value.split("\n").filter(line => line.trim() !== "");
    const ranked = texts.length > 0 ? await rank(texts) : [];
    // A later change may have been answered first.
    if (current === version) place.replaceChildren(...ranked.map(([one, score]) => bar(one, score, undefined, score => score.toFixed(3))));
  });
  let waiting = null;
  area.oninput = () => {
    clearTimeout(waiting);
    waiting = setTimeout(show, 300);
  };
  show();
  return make("section", {}, make("h2", {}, title), area, place);
}

/** The tokens of the text; pointing at one shows its likeliest tags. */
async function tagsOfTokens(model, characters) {
  const tokens = await ask(modelPath(model.name) + "/tags", { text: text.value });
  const details = make("div", {});
  const spans = tokens.map(({ start, end, tags }) => {
    const span = make("span", { tabIndex: 0, title: `${tags[0].label}, ${percent(tags[0].score)}` }, visible(characters.slice(start, end).join("")));
    const show = () => details.replaceChildren(...tags.map(one => bar(one.label, one.score)));
    span.onmouseenter = show;
    span.onfocus = show;
    return span;
  });
  return make("section", {}, make("h2", {}, "Tags of a token"), make("div", { className: "tokens" }, ...spans), details,
    make("p", { className: "dim" }, "Point at a token to see its likeliest tags."));
}

/** Days that the user has chosen. */
function changeDays(next) {
  leaveExample("days");
  days = next;
  refresh();
}

/** A tagged part of a text; each label has a colour of its own. */
function tagged({ entity_group, score }, words) {
  const mark = make("mark", { title: `${entity_group}, ${percent(score)}` }, words, make("small", {}, " " + entity_group));
  const hue = [...entity_group].reduce((sum, c) => (31 * sum + c.codePointAt(0)) % 360, 0);
  mark.style.background = `color-mix(in srgb, hsl(${hue} 70% 50%) 30%, transparent)`;
  return mark;
}

/** A written token; pointing at it shows what else was likely. */
function tokenOf(choice, details) {
  const span = make("span", { tabIndex: 0, title: percent(choice.probability) }, choice.token);
  span.style.background = `color-mix(in srgb, var(--accent) ${Math.round(45 * (1 - choice.probability))}%, transparent)`;
  const show = () => details.replaceChildren(make("h2", {}, "In this place"), ...choice.best.map(([token, p]) => bar(visible(token), p)));
  span.onmouseenter = show;
  span.onfocus = show;
  return span;
}

/** Runs `work`; an error is shown in `place`. */
async function report(place, work) {
  try {
    await work();
  } catch (error) {
    place.replaceChildren(make("p", { className: "fault", role: "alert" }, error.message));
  }
}

/** Replaces the children of `place`; a button that had the focus gives it to the one that takes its place. */
function replaceKeepingFocus(place, children) {
  const buttons = () => [...place.querySelectorAll("button")];
  const focused = buttons().indexOf(document.activeElement);
  place.replaceChildren(...children);
  if (focused >= 0) buttons()[focused]?.focus();
}

/** The tasks of the shown models, by column. */
const tasks = new Map();

/** Shows the inputs that a shown model reads. */
function showInputs() {
  const shown = [...tasks.values()];
  const reads = kind => shown.some(task => kindOf(task) === kind);
  document.getElementById("for-pictures").hidden = !reads("picture");
  document.getElementById("for-texts").hidden = !reads("text");
}

/** The part of the page that shows one model, if one is chosen. */
function column(select) {
  const body = make("div", {});
  const name = make("h2", {});
  const panel = make("section", { className: "panel", "aria-label": select.ariaLabel ?? "model" }, name, body);
  let model = null, version = 0;
  const show = () => report(body, async () => {
    const current = ++version;
    panel.hidden = select.value === "";
    name.textContent = select.value;
    if (model?.name !== select.value) {
      body.replaceChildren(make("p", { className: "dim" }, "loading …"));
      model = null;
      tasks.delete(select);
      showInputs();
      if (select.value === "") return;
      const described = await ask(modelPath(select.value));
      if (current !== version) return;
      model = { name: select.value, ...described };
      tasks.set(select, model.task);
      showInputs();
      // What the user has written stays, and a second model reads what the first one does.
      const kind = kindOf(model.task);
      const isFirst = tasks.keys().next().value === select || kindOf(exampleOf?.task) !== kind;
      if (isFirst && model.examples.length > 0 && !ofUser.has(kind)) {
        showExample(model, model.examples[0]);
        if (tasks.size > 1) queueMicrotask(refresh);
      } else if (isFirst) {
        [example, exampleOf] = [null, model];
        describeExample();
      }
    }
    const view = views[model.task];
    const parts = await view(model);
    // A later change may have been answered first.
    if (current === version) replaceKeepingFocus(body, [make("p", { className: "dim" }, model.task), ...parts]);
  });
  select.onchange = show;
  columns.append(panel);
  return show;
}

const shows = [...document.querySelectorAll("select.model")].map(column);
const refresh = () => shows.forEach(show => show());
let waiting = null;
text.oninput = () => {
  leaveExample("text");
  clearTimeout(waiting);
  waiting = setTimeout(refresh, 300);
};
picture.onchange = () => {
  leaveExample("picture");
  refresh();
};
another.onclick = () => {
  const { examples } = exampleOf;
  showExample(exampleOf, examples[(examples.indexOf(example) + 1) % examples.length]);
  refresh();
};
refresh();
