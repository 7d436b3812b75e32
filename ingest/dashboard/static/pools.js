// Pools, classes, placements, tiers, programs: what a look says of the node itself.

import { History, draw } from "./charts.js";
import { $, badge, bytes, count, duration, h, meter, numbers, percent, rate, track } from "./shown.js";

const speeds = new History();
const steps = new Map(); // worker -> History of its steps' ms

export function showPools(look) {
  const byPool = {}; // of all nodes
  for (const pool of everyPool(look)) byPool[pool.processor] = (byPool[pool.processor] ?? 0) + pool.tokens_per_s;
  speeds.add(byPool);
  draw($("speed-chart"), speeds, { unit: "tok/s" });
  const total = Object.values(byPool).reduce((sum, one) => sum + one, 0);
  $("speed").textContent = rate(total);
  $("speed-legend").replaceChildren(
    ...Object.entries(byPool).map(([name, value]) => h("li", { class: name }, `${name} ${rate(value)}`)),
  );
  $("pools").replaceChildren(...look.pools.map(poolCard));
  if (!look.pools.length) $("pools").append(h("p", { class: "empty" }, "No pool reports."));
}

const everyPool = (look) => look.nodes.flatMap((node) => node.pools);

function poolCard(pool) {
  const line = steps.get(pool.worker) ?? new History();
  steps.set(pool.worker, line);
  line.add({ [pool.processor]: pool.running ? pool.step_ms : 0 });
  const card = h("article", { class: `card pool ${pool.processor}`, "aria-label": `pool ${pool.pool}` },
    h("header", {}, h("h3", {}, pool.processor), h("span", { class: "worker" }, pool.worker), badge(pool.state)));
  if (pool.note) card.append(h("p", { class: "note" }, pool.note));
  if (!pool.total_blocks) return card;
  const used = pool.total_blocks - pool.free_blocks;
  const chart = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  chart.setAttribute("class", "chart");
  chart.setAttribute("role", "img");
  chart.setAttribute("aria-label", "duration of its steps");
  draw(chart, line, { unit: "ms a step" });
  card.append(
    h("dl", { class: "numbers" }, ...numbers([
      ["tokens/s", rate(pool.tokens_per_s)],
      ["step", pool.step_ms ? duration(pool.step_ms) : "–"],
      ["batch", pool.running ? count(pool.batch) : "0"],
      ["to prefill", count(pool.prefill_tokens)],
      ["queued", count(pool.queued)],
      ["cost error", pool.cost ? percent(pool.cost.error) : "–"],
    ])),
    meter("places", pool.running / Math.max(1, pool.capacity), `${pool.running} of ${pool.capacity}`, pool.processor),
    meter("KV blocks", used / pool.total_blocks, `${count(used)} of ${count(pool.total_blocks)}`, pool.processor),
    chart,
  );
  return card;
}

export function showTiles(look) {
  const waiting = look.classes.reduce((sum, row) => sum + row.waiting, 0)
    + look.nodes.reduce((sum, node) => sum + node.queued, 0);
  const running = look.nodes.reduce((sum, node) => sum + node.running, 0);
  const places = look.nodes.reduce((sum, node) => sum + node.capacity, 0);
  const disk = look.tiers.find((tier) => tier.tier === "NVMe");
  const kept = look.classes.filter((row) => row.attainment != null);
  const least = Math.min(...kept.map((row) => row.attainment - row.target), 0);
  const told = [
    ["Running", `${count(running)}`, ` of ${places}`],
    ["Waiting", `${count(waiting)}`, look.for_session ? ` + ${look.for_session} for a session` : ""],
    ["Promises kept", kept.length ? percent(Math.min(...kept.map((row) => row.attainment)), 1) : "–",
      kept.length ? (least < 0 ? " below target" : " on target") : ""],
    ["Sessions kept", disk ? count(disk.sessions) : "–", disk ? ` ${bytes(disk.bytes ?? 0)}` : ""],
  ];
  $("tiles").replaceChildren(...told.map(([name, big, small]) =>
    h("div", {}, h("dt", {}, name), h("dd", {}, big, h("small", {}, small)))));
}

export function showClasses(look) {
  $("classes").tBodies[0].replaceChildren(...look.classes.map((row) => {
    const isKept = row.attainment == null || row.attainment >= row.target;
    const kept = row.attainment == null ? "–" : `${percent(row.attainment, 1)} (${percent(row.target)})`;
    const broken = Object.entries(row.outcomes).filter(([what]) => what !== "kept");
    return h("tr", {},
      h("td", {}, row.sla),
      h("td", {}, row.most == null ? count(row.waiting) : `${count(row.waiting)} of ${count(row.most)}`),
      h("td", {}, row.wait_ms != null && row.wait_ms < 1 ? "none" : duration(row.wait_ms)),
      h("td", {}, promised(row)),
      h("td", {}, track(row.attainment ?? 0, { tone: isKept ? "good" : "bad", target: row.target }), kept),
      h("td", {}, broken.map(([what, n]) => `${what} ${n}`).join(", ") || "–"));
  }));
}

function promised(row) {
  const parts = [
    row.ttft_ms && `first token ${duration(row.ttft_ms)}`,
    row.tpot_ms && `${duration(row.tpot_ms)} a token`,
    row.deadline_ms && `end ${duration(row.deadline_ms)}`,
  ];
  return parts.filter(Boolean).join(", ") || "nothing";
}

const WHY = {
  room: "has room", relief: "relieves the other pool", sooner: "is sooner", fastest: "the fastest",
  only: "the only one that holds it", home: "keeps the session", preferred: "by preference",
  unplanned: "not said",
};

export function showPlaces(look) {
  const rows = Object.entries(look.placements)
    .flatMap(([plan, reasons]) => Object.entries(reasons).map(([why, n]) => [plan, why, n]))
    .sort((a, b) => b[2] - a[2]);
  const all = rows.reduce((sum, row) => sum + row[2], 0);
  fill("places", "Nothing was placed yet.", rows.slice(0, 8).map(([plan, why, n]) =>
    h("li", {}, h("div", { class: "row" },
      h("span", {}, h("strong", {}, plan.replace("+", " → ")), ` ${WHY[why] ?? why}`),
      h("span", { class: "num" }, count(n))), track(n / all, { tone: plan.split("+")[0] }))));
}

export function showTiers(look) {
  fill("tiers", "No pool reports.", look.tiers.map((tier) => {
    const where = tier.pool ? `${tier.tier} · ${tier.pool}` : tier.tier;
    const what = tier.pool ? "running" : `kept, ${bytes(tier.bytes ?? 0)}`;
    const found = tier.found_tokens ? ` · ${count(tier.found_tokens)} tokens found` : "";
    return h("li", {}, h("div", { class: "row" }, h("strong", {}, where),
      h("span", { class: "num" }, `${count(tier.sessions)} ${what}${found}`)),
    track(tier.used ?? 0, { tone: tier.pool || "good" }));
  }));
}

export function showPrograms(look) {
  fill("programs", "No keeper says how they are.", Object.entries(look.programs).map(([name, one]) =>
    h("li", {}, h("strong", {}, name), badge(one.state),
      h("span", { class: "note" }, restarts(one)))));
}

function restarts(one) {
  if (!one.restarts) return "never restarted";
  const times = one.restarts === 1 ? "restarted once" : `restarted ${one.restarts} times`;
  return one.last_exit ? `${times}: ${one.last_exit}` : times;
}

function fill(id, empty, items) {
  $(id).replaceChildren(...(items.length ? items : [h("li", { class: "empty" }, empty)]));
}
