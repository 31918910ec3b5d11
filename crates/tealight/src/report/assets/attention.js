// Attention: a grid of layers and heads, each of which opens to a view of what every token reads.

// Ten points of viridis, and RdBu of ColorBrewer for maps with negative weights.
const VIRIDIS = ["440154", "482878", "3e4989", "31688e", "26828e", "1f9e89", "35b779", "6ece58", "b5de2b", "fde725"];
const BLUE_RED = ["2166ac", "4393c3", "92c5de", "d1e5f0", "f7f7f7", "fddbc7", "f4a582", "d6604d", "b2182b"];

// A colour of a scale for 0 ≤ part ≤ 1, as three bytes.
function colourAt(scale, part) {
  const place = Math.min(1, Math.max(0, part)) * (scale.length - 1);
  const left = Math.min(scale.length - 2, Math.floor(place));
  const of = at => [0, 2, 4].map(from => parseInt(scale[at].slice(from, from + 2), 16));
  const [a, b] = [of(left), of(left + 1)];
  return a.map((byte, i) => Math.round(byte + (b[i] - byte) * (place - left)));
}

// The weights of a map, row by row.
function weightsOf(map) {
  const bytes = Uint8Array.from(atob(map.levels), letter => letter.charCodeAt(0));
  return Float32Array.from(bytes, byte => map.low + (map.high - map.low) * byte / 255);
}

// A map as a picture with one pixel for each weight.
function canvasOf(layer, map) {
  const canvas = element("canvas", { width: layer.keys.length, height: layer.queries.length, "aria-hidden": "true" });
  const context = canvas.getContext("2d");
  const image = context.createImageData(canvas.width, canvas.height);
  const size = Math.max(map.high, -map.low);
  weightsOf(map).forEach((weight, at) => {
    const colour = map.low < 0 ? colourAt(BLUE_RED, (weight / size + 1) / 2) : colourAt(VIRIDIS, weight / map.high);
    image.data.set([...colour, 255], 4 * at);
  });
  context.putImageData(image, 0, 0);
  return canvas;
}

// A token with its spaces and ends of lines made visible.
function visible(token) {
  return token.replace(/\n/g, "↵").replace(/\t/g, "⇥").replace(/ /g, "␣") || "∅";
}

function gridOf(input, open) {
  const grid = element("div", { class: "heads" });
  for (const layer of input.layers) {
    const maps = element("div", { class: "maps" });
    layer.maps.forEach((map, at) => {
      const name = layer.name + ", head " + (at + 1);
      const button = element("button", { type: "button", title: name, "aria-label": name, "aria-pressed": "false" }, canvasOf(layer, map));
      button.addEventListener("click", () => {
        grid.querySelectorAll("button").forEach(other => other.setAttribute("aria-pressed", String(other === button)));
        open(layer, map, name);
      });
      maps.append(button);
    });
    grid.append(element("span", { class: "name" }, layer.name), maps);
  }
  return grid;
}

// The tokens of a head: on the left those that read, on the right those that are read.
function headView(layer, map, name) {
  const weights = weightsOf(map), n = layer.keys.length;
  const said = element("p", { class: "reads", "aria-live": "polite" }, "Hover or choose a token on the left.");
  const [read, reading] = [layer.keys.map(visible), layer.queries.map(visible)];
  const keys = read.map(text => element("li", {}, element("span", { class: "token" }, text), element("span", { class: "weight" })));
  const show = at => {
    const row = Array.from(weights.slice(at * n, (at + 1) * n));
    const largest = Math.max(...row.map(Math.abs), 1e-9);
    keys.forEach((item, key) => {
      item.style.setProperty("--share", Math.abs(row[key]) / largest);
      item.querySelector(".weight").textContent = (100 * row[key]).toFixed(1) + " %";
    });
    const most = row.map((weight, key) => [weight, key]).sort((a, b) => b[0] - a[0]).slice(0, 4);
    said.textContent = "“" + reading[at] + "” (" + (at + 1) + ") reads " + most.map(([weight, key]) =>
      "“" + read[key] + "” (" + (key + 1) + ") " + (100 * weight).toFixed(1) + " %").join(", ");
  };
  const queries = reading.map((text, at) => {
    const button = element("button", { type: "button" }, text);
    for (const event of ["mouseenter", "focus", "click"]) {
      button.addEventListener(event, () => {
        queries.forEach(item => item.firstChild.classList.toggle("chosen", item.firstChild === button));
        show(at);
      });
    }
    return element("li", {}, button);
  });
  const picture = canvasOf(layer, map);
  picture.className = "large";
  return element("div", { class: "head" }, element("h3", {}, name), said, element("div", { class: "columns" },
    element("div", {}, element("h4", {}, "reads"), element("ol", { class: "queries" }, ...queries)),
    element("div", {}, element("h4", {}, "is read"), element("ol", { class: "keys" }, ...keys)),
    element("div", { class: "picture" }, element("h4", {}, "map"), picture)));
}

for (const place of document.querySelectorAll("[data-attention]")) {
  const input = data.attention[place.dataset.attention];
  const view = element("div", { class: "opened" });
  const grid = gridOf(input, (layer, map, name) => view.replaceChildren(headView(layer, map, name)));
  const pictures = place.querySelector("details");
  // Without scripts, the pictures are all there is.
  pictures.open = pictures.dataset.stays === "true";
  place.insertBefore(grid, pictures);
  place.insertBefore(view, pictures);
}
