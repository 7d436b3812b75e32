// One job: what is known of it, its text as it comes, another class, cancelling.

import { Refused, ask, follow } from "./events.js";
import { $, badge, count, duration, h, numbers } from "./shown.js";

let reading = null; // ends the stream of the job before
let shown = null; // its id

export function openJob(job, classes) {
  reading?.abort();
  reading = new AbortController();
  shown = job.id;
  $("job-title").textContent = job.full_id;
  $("job-text").textContent = "";
  $("job-said").textContent = "";
  $("job-sla").replaceChildren(...classes.map((sla) => h("option", { value: sla, selected: sla === job.sla && "" }, sla)));
  tell(job);
  if (!$("job").open) $("job").showModal();
  $("job-text").focus();
  stream(job, reading.signal);
}

export function startPanel() {
  $("job").addEventListener("close", () => reading?.abort());
  $("job").addEventListener("click", (event) => {
    if (event.target === $("job")) $("job").close(); // beside it
  });
  $("job-cancel").addEventListener("click", () => act("DELETE", ""));
  $("job-promote").addEventListener("click", () => act("POST", "/promote", { sla: $("job-sla").value }));
}

async function stream(job, signal) {
  const text = $("job-text");
  text.toggleAttribute("data-live", true);
  await follow(`/v1/jobs/${encodeURIComponent(job.id)}/events`, {
    signal,
    onEvent: ({ event, data }) => {
      const isAtEnd = text.scrollHeight - text.scrollTop - text.clientHeight < 40;
      text.append(data.text ?? "");
      if (isAtEnd) text.scrollTop = text.scrollHeight;
      if (event === "end") refresh(job.id);
    },
    onState: (state, error) => {
      if (state === "refused") text.textContent = whyNot(error);
    },
  });
  if (!signal.aborted) text.toggleAttribute("data-live", false);
}

function whyNot(error) {
  if (error.status === 404) return "Its record has expired, or it is another tenant's: this key may not read it.";
  if (error.status === 403) return "This key may not read jobs: it needs the scope jobs.";
  return error.message;
}

async function refresh(id) {
  try {
    const job = await (await ask(`/v1/jobs/${encodeURIComponent(id)}`)).json();
    if (shown === id) tell({ ...job, tokens: job.usage?.completion_tokens ?? 0 });
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
  }
}

function tell(job) {
  const isOver = ["finished", "failed", "cancelled", "expired"].includes(job.status);
  const plan = job.plan ?? job.pool;
  $("job-facts").replaceChildren(badge(job.status), h("span", { class: "tag" }, job.sla ?? "?"),
    ...(plan ? [h("span", { class: `tag ${plan.split("+")[0]}` }, plan.replace("+", " → "))] : []),
    ...(job.session_id ? [h("span", { class: "tag" }, `session ${job.session_id}`)] : []));
  $("job-why").textContent = job.error?.message ?? job.error ?? job.reason ?? "";
  $("job-numbers").replaceChildren(...numbers([
    ["tokens", count(job.tokens ?? 0)],
    ["first token", duration(job.ttft_ms)],
    ["predicted", duration(job.predicted_ttft_ms)],
    ["a token", duration(job.tpot_ms)],
    ["waited", duration(job.queue_ms)],
    ["moves", count(job.moves ?? 0)],
  ]));
  $("job-actions").hidden = isOver;
}

async function act(method, what, body) {
  try {
    const options = { method, body: body && JSON.stringify(body) };
    const told = await (await ask(`/v1/jobs/${encodeURIComponent(shown)}${what}`, options)).json();
    $("job-said").textContent = told.result;
  } catch (error) {
    $("job-said").textContent = error.message;
  }
}
