"""A request's trace, read off its record once it has ended: from its XADD to its webhook.

    lockstep.request   arrival ───────────────────────────────────────────────────► end
      queue            arrival ──► placed           place: what was decided there, and why
      claim                        placed ──► taken by a pool
      restore                                 taken ──► first step (KV is brought, places are full)
      prefill                                           first step ──► first token
      decode                                                            first token ──► last
      finish                                                                       last ──► end
    webhook                                                                        end ──► delivered

Nothing is measured for it: the times are those of the job. Ids are hashes of what they name, so a
trace that is told twice is the same one. Of a request that was taken over or moved, what its last
owner did not see is one span, `run`. Attributes are OpenTelemetry's for generative AI, and ours.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import xxhash

from workers.wire import split_id

ROOT: Final = "lockstep.request"
Job = Mapping[str, Any]
Value = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Span:
    """One part of a trace. start_ms, end_ms: Unix; parent_id: hex; error: "" is none.

    events: (Unix ms, name, attributes)
    """

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    start_ms: float
    end_ms: float
    attributes: dict[str, Value] = field(default_factory=dict)
    events: tuple[tuple[float, str, dict[str, Value]], ...] = ()
    error: str = ""


def request_spans(request_id: str, job: Job) -> list[Span]:
    """All but the webhook's. job: the parsed hash of an ended request, with its traceparent."""
    trace_id, asker = parts_of(job)
    root_id = span_id_of(trace_id, request_id, ROOT)
    spans = [root(request_id, job, trace_id, asker, root_id)]
    for name, start_ms, end_ms, attributes in phases(job):
        own_id = span_id_of(trace_id, request_id, name)
        end_ms = max(start_ms, end_ms)  # of two clocks
        spans.append(Span(name, trace_id, own_id, root_id, start_ms, end_ms, attributes))
    return spans


def webhook_span(request_id: str, job: Job, webhook: Job) -> Span | None:
    """Of a webhook that was delivered or is dead; None: of no such one."""
    if webhook.get("state") not in ("delivered", "dead") or "created_ms" not in webhook:
        return None
    trace_id, _ = parts_of(job)
    parent_id = span_id_of(trace_id, request_id, ROOT)
    told = {
        "lockstep.webhook.state": webhook["state"],
        "lockstep.webhook.attempts": webhook.get("attempts", 0),
        "http.response.status_code": webhook.get("last_status"),
    }
    end_ms = max(webhook["created_ms"], webhook.get("last_ms") or 0)
    return Span(
        name="webhook",
        trace_id=trace_id,
        span_id=span_id_of(trace_id, request_id, "webhook"),
        parent_id=parent_id,
        start_ms=webhook["created_ms"],
        end_ms=end_ms,
        attributes={name: value for name, value in told.items() if value is not None},
        error=str(webhook.get("last_error", "")) if webhook["state"] == "dead" else "",
    )


def root(request_id: str, job: Job, trace_id: str, asker: str, root_id: str) -> Span:
    tenant, own_id = split_id(request_id)
    told: dict[str, Any] = {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "lockstep",
        "gen_ai.request.model": job.get("model"),
        "gen_ai.response.id": own_id,
        "gen_ai.response.finish_reasons": job.get("finish_reason"),
        "gen_ai.usage.input_tokens": job.get("prompt_tokens"),
        "gen_ai.usage.output_tokens": job.get("output_tokens"),
        "lockstep.cached_tokens": job.get("cached_tokens"),
        "lockstep.tenant": tenant,
        "lockstep.sla": job.get("sla"),
        "lockstep.status": job["status"],
        "lockstep.session": job.get("session_id"),
        "lockstep.digest": job.get("digest"),
        "error.type": job.get("code"),
    }
    moved = {"lockstep.moves": job.get("moves", 0), "lockstep.pool": job.get("pool", "")}
    events = ((job["moved_ms"], "moved", moved),) if job.get("moved_ms") else ()
    return Span(
        name=ROOT,
        trace_id=trace_id,
        span_id=root_id,
        parent_id=asker,
        start_ms=job["arrival_ms"],
        end_ms=job["ended_ms"],
        attributes={name: value for name, value in told.items() if value is not None},
        events=events,
        error="" if job["status"] == "finished" else job.get("error") or job["status"],
    )


def phases(job: Job) -> Iterator[tuple[str, float, float, dict[str, Value]]]:
    """(name, from, to, attributes), as far as the request came."""
    arrival_ms, ended_ms = job["arrival_ms"], job["ended_ms"]
    placed_ms, taken_ms = job.get("queued_ms"), job.get("started_ms")
    yield "queue", arrival_ms, placed_ms or ended_ms, {}
    if placed_ms is None:
        return
    yield "place", placed_ms, placed_ms, decision(job)
    yield "claim", placed_ms, taken_ms or ended_ms, {}
    if taken_ms is None:
        return
    where = {"lockstep.pool": job.get("pool", ""), "lockstep.worker": job.get("worker", "")}
    queue_ms, ttft_ms = job.get("queue_ms"), job.get("ttft_ms")
    if queue_ms is None or ttft_ms is None:
        yield "run", taken_ms, ended_ms, {**where, "lockstep.moves": job.get("moves", 0)}
        return
    begun_ms, first_ms = arrival_ms + queue_ms, arrival_ms + ttft_ms
    later = max(0, job.get("output_tokens", 1) - 1) * job.get("tpot_ms", 0.0)
    last_ms = min(float(ended_ms), first_ms + later)
    yield "restore", taken_ms, begun_ms, {}
    yield "prefill", begun_ms, first_ms, {**where, "lockstep.tokens": job.get("prompt_tokens", 0)}
    yield "decode", first_ms, last_ms, {**where, "lockstep.tokens": job.get("output_tokens", 0)}
    yield "finish", last_ms, ended_ms, {}


def decision(job: Job) -> dict[str, Value]:
    """What the router decided, and what it expected."""
    told = {
        "lockstep.plan": job.get("plan"),
        "lockstep.reason": job.get("reason"),
        "lockstep.predicted_ttft_ms": job.get("predicted_ttft_ms"),
    }
    return {name: value for name, value in told.items() if value is not None}


def parts_of(job: Job) -> tuple[str, str]:
    """Trace and span of whoever asked, hex."""
    _, trace_id, asker, _ = job["traceparent"].split("-")
    return trace_id, asker


def span_id_of(trace_id: str, request_id: str, name: str) -> str:
    return xxhash.xxh3_64_hexdigest(f"{trace_id} {request_id} {name}".encode())


def onward(request_id: str, job: Job) -> str:
    """The traceparent that a webhook's receiver gets; "": the request has no trace."""
    if not job.get("traceparent"):
        return ""
    trace_id, _ = parts_of(job)
    return f"00-{trace_id}-{span_id_of(trace_id, request_id, 'webhook')}-01"
