// Lines over time, as SVG: what came once a second, the last minute to five of it.

const KEPT = 300;
const LEAST = 60; // seconds that a chart is wide, before it has as many
const WIDTH = 600;
const HEIGHT = 100;
const SVG = "http://www.w3.org/2000/svg";

// Remembers values by name; a look in which a name is absent counts as 0.
export class History {
  constructor() {
    this.lines = new Map();
    this.length = 0;
  }

  add(values) {
    for (const name of Object.keys(values)) {
      if (!this.lines.has(name)) this.lines.set(name, new Array(this.length).fill(0));
    }
    this.length = Math.min(KEPT, this.length + 1);
    for (const [name, line] of this.lines) {
      line.push(values[name] ?? 0);
      if (line.length > KEPT) line.shift();
    }
  }
}

// Draws each line of a History; names are also the classes of their paths.
export function draw(svg, history, { unit = "" } = {}) {
  const top = nice(Math.max(1, ...[...history.lines.values()].flat()));
  const parts = [rule(HEIGHT), rule(HEIGHT / 2), rule(0)];
  for (const [name, line] of history.lines) {
    const path = points(line, top);
    parts.push(node("path", { class: `area ${name}`, d: `${path}L${WIDTH} ${HEIGHT}L${x(0, line)} ${HEIGHT}Z` }));
    parts.push(node("path", { class: name, d: path }));
  }
  const plot = node("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", width: "100%", height: "100%" });
  plot.append(...parts);
  const scale = node("text", { x: "100%", y: "-4", "text-anchor": "end" });
  scale.textContent = `${top >= 10 ? Math.round(top) : top} ${unit}`;
  svg.replaceChildren(plot, scale);
}

const x = (index, line) => WIDTH - ((line.length - 1 - index) * WIDTH) / (Math.max(LEAST, line.length) - 1);

function points(line, top) {
  return line
    .map((value, i) => `${i ? "L" : "M"}${x(i, line).toFixed(1)} ${(HEIGHT * (1 - value / top)).toFixed(1)}`)
    .join("");
}

// The next round number: 1, 2, 5, 10, 20, ...
function nice(value) {
  const unit = 10 ** Math.floor(Math.log10(value));
  return unit * [1, 2, 5, 10].find((step) => step * unit >= value);
}

const rule = (y) => node("line", { x1: 0, x2: WIDTH, y1: y, y2: y });

function node(tag, attributes) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}
