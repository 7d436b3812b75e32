// Elements and words: how things are made and how numbers are written. Never any HTML out of data.

export const $ = (id) => document.getElementById(id);

// An element: h("li", {class: "x"}, "text", child, ...). A property that is false is left out.
export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child != null && child !== false));
  return element;
}

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export const count = (n) => (n >= 100_000 ? short.format(n) : whole.format(n));
export const rate = (n) => (n >= 100 ? whole.format(n) : n.toFixed(1));
export const percent = (part, digits = 0) => `${(100 * part).toFixed(digits)} %`;

export function duration(ms) {
  if (ms == null) return "–";
  if (ms < 1) return `${ms.toFixed(1)} ms`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 120_000) return `${(ms / 1000).toFixed(1)} s`;
  if (ms < 7_200_000) return `${Math.round(ms / 60_000)} min`;
  return `${(ms / 3_600_000).toFixed(1)} h`;
}

export function bytes(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  for (; n >= 1024 && unit < units.length - 1; unit += 1) n /= 1024;
  return `${n >= 100 || unit === 0 ? whole.format(n) : n.toFixed(1)} ${units[unit]}`;
}

// A bar: part of a whole, with a mark at `target`.
export function track(part, { tone = "", target = null, label = "" } = {}) {
  const fill = h("i");
  fill.style.width = `${100 * Math.max(0, Math.min(1, part))}%`;
  const mark = target == null ? null : h("b");
  if (mark) mark.style.left = `calc(${100 * target}% - 1px)`;
  const about = label ? { role: "img", "aria-label": label } : { "aria-hidden": "true" };
  return h("span", { class: `track ${tone}`, ...about }, fill, mark);
}

export function meter(name, part, words, tone = "") {
  return h("div", { class: "meter" }, h("span", {}, name), track(part, { tone }),
    h("span", { class: "num" }, words));
}

export function numbers(pairs) {
  return pairs.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)));
}

export const badge = (word) => h("span", { class: `badge ${word}` }, word);
