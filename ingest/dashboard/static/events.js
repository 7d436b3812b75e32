// Server-sent events by fetch: EventSource cannot send a key, nor say why it was refused.

const KEY = "lockstep-key"; // in this tab only
const AGAIN_MS = [500, 1000, 2000, 5000];

export const key = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (value) => sessionStorage.setItem(KEY, value),
};

// fetch with the key. Throws Refused for what the node will not do.
export async function ask(path, options = {}) {
  const headers = { ...options.headers };
  if (key.get()) headers.Authorization = `Bearer ${key.get()}`;
  if (options.body) headers["Content-Type"] = "application/json";
  const response = await fetch(path, { ...options, headers, cache: "no-store" });
  if (response.ok) return response;
  const told = await response.json().catch(() => null);
  throw new Refused(response.status, told?.error?.message ?? `HTTP ${response.status}`);
}

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

// Calls onEvent({id, event, data}) for each; comes back after a break, behind the last event.
// onState: "live", "away", or "refused" with the Refused: then it has ended.
export async function follow(path, { onEvent, onState = () => {}, signal, once = false }) {
  let lastId = "";
  for (let tries = 0; !signal?.aborted; tries += 1) {
    try {
      const headers = lastId ? { "Last-Event-ID": lastId } : {};
      const response = await ask(path, { headers, signal });
      if (response.status === 204) return;
      onState("live");
      for await (const event of events(response.body)) {
        lastId = event.id || lastId;
        tries = 0;
        onEvent(event);
        if (event.event === "end") return;
      }
      if (once) return;
      onState("away");
    } catch (error) {
      if (signal?.aborted) return;
      if (error instanceof Refused && error.status < 500 && error.status !== 429) {
        onState("refused", error);
        return;
      }
      onState("away");
    }
    await new Promise((done) => setTimeout(done, AGAIN_MS[Math.min(tries, AGAIN_MS.length - 1)]));
  }
}

// The events of one response: frames end with an empty line.
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const frames = (text + value).split("\n\n");
      text = frames.pop();
      for (const frame of frames) {
        const event = parse(frame);
        if (event) yield event;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

function parse(frame) {
  const fields = {};
  for (const line of frame.split("\n")) {
    const at = line.indexOf(": ");
    if (at > 0) fields[line.slice(0, at)] = line.slice(at + 2);
  }
  return fields.data ? { ...fields, data: JSON.parse(fields.data) } : null;
}
