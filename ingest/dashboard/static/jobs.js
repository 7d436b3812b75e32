// Lists of jobs: rows keep their place in the page while what they say changes, so focus stays.

import { $, count, duration, h } from "./shown.js";

// Shows jobs in the list `id`; open(job) when one is chosen. Up, down, Home and End move in it.
export class JobList {
  constructor(id, empty, open) {
    this.list = $(id);
    this.empty = h("li", { class: "empty" }, empty);
    this.open = open;
    this.rows = new Map(); // full id -> row
    this.list.addEventListener("keydown", (event) => this.move(event));
  }

  // now: Unix ms, for how long they run already
  show(jobs, now) {
    const wanted = new Set(jobs.map((job) => job.full_id));
    for (const [id, row] of this.rows) {
      if (wanted.has(id) || row.contains(document.activeElement)) continue;
      row.remove();
      this.rows.delete(id);
    }
    jobs.forEach((job, place) => {
      const row = this.rows.get(job.full_id) ?? this.made(job.full_id);
      tell(row, job, now);
      if (this.list.children[place] !== row) this.list.insertBefore(row, this.list.children[place] ?? null);
    });
    if (this.rows.size) this.empty.remove();
    else this.list.append(this.empty);
  }

  made(id) {
    const button = h("button", { type: "button" }, h("span", { class: "id" }), h("span", { class: "num" }), h("span", { class: "why" }));
    const row = h("li", {}, button);
    button.addEventListener("click", () => this.open(row.job));
    this.rows.set(id, row);
    return row;
  }

  move(event) {
    const buttons = [...this.list.querySelectorAll("button")];
    const at = buttons.indexOf(document.activeElement);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: buttons.length - 1 }[event.key];
    if (at < 0 || to === undefined || !buttons[to]) return;
    event.preventDefault();
    buttons[to].focus();
  }
}

function tell(row, job, now) {
  row.job = job;
  const [id, num, why] = row.firstElementChild.children;
  const [processor, node] = (job.pool ?? "").split("@");
  const plan = job.plan ?? processor;
  const tags = [h("span", { class: "tag" }, job.sla ?? "?")];
  if (plan) tags.push(h("span", { class: `tag ${plan.split("+")[0]}` }, plan.replace("+", " → ")));
  if (node) tags.push(h("span", { class: "tag" }, node));
  if (job.status !== "running" && job.status !== "finished") tags.push(h("span", { class: "tag" }, job.status));
  id.replaceChildren(job.full_id, ...tags);
  const isRunning = job.status === "running" && job.started_ms;
  num.textContent = `${count(job.tokens ?? 0)} tok · ${duration(isRunning ? now - job.started_ms : job.ttft_ms)}`;
  num.title = isRunning ? "tokens so far, time since its start" : "tokens, time to the first one";
  why.textContent = job.error ?? job.reason ?? "";
  why.classList.toggle("error", Boolean(job.error));
}
