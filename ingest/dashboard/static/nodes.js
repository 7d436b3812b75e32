// The fleet's nodes, a row each; a node that is alone on its Redis has no such list.

import { $, badge, count, duration, h, percent, rate, track } from "./shown.js";

export const isFleet = (look) => look.nodes.some((node) => node.name);

export function showNodes(look) {
  $("nodes-section").hidden = !isFleet(look);
  $("pools-title").textContent = look.node ? `Pools of ${look.node}` : "Pools";
  if (!isFleet(look)) return;
  $("nodes").tBodies[0].replaceChildren(...look.nodes.flatMap((node) => rows(node, look)));
}

// One row, and below it why the node does not take part.
function rows(node, look) {
  const used = node.total_blocks - node.free_blocks;
  const name = node.name === look.node ? `${node.name} (this one)` : node.name;
  const row = h("tr", {},
    h("th", { scope: "row" }, name),
    h("td", {}, badge(node.state)),
    h("td", { class: "num" }, rate(node.tokens_per_s)),
    h("td", {}, track(part(node.running, node.capacity)), `${count(node.running)} of ${count(node.capacity)}`),
    h("td", { class: "num" }, count(node.queued)),
    h("td", {}, track(part(used, node.total_blocks)), `${count(used)} of ${count(node.total_blocks)}`),
    h("td", {}, percent(node.share)),
    h("td", {}, ...node.pools.flatMap((pool) => [
      h("span", { class: `tag ${pool.processor}`, title: told(pool) }, `${pool.processor} ${pool.state}`), " "])));
  if (!node.trouble) return [row];
  return [row, h("tr", { class: "trouble" }, h("td", { colspan: 8 }, node.trouble))];
}

const part = (some, whole) => some / Math.max(1, whole);

function told(pool) {
  const step = pool.step_ms ? `, ${duration(pool.step_ms)} a step` : "";
  return pool.note || `${pool.running} of ${pool.capacity} run, ${rate(pool.tokens_per_s)} tokens/s${step}`;
}
