"""What the router does to a message once it is decided: one atomic script, one line of log."""

import time
from math import ceil
from typing import Any, Final

import msgpack

from router.admit import Reject
from router.consumer import Entry
from router.placement import Plan
from workers.log import logger
from workers.store import Store
from workers.wire import EndEvent, Planned, Request

DEAD_BODY_BYTES_MAX: Final = 16_384  # of a message, kept in its dead letter

log = logger("router")


def dispatch(store: Store, entry: Entry, request: Request, plan: Plan) -> str:
    """Into the queue of its pool, or behind its session's other requests. As Store.route."""
    since_ms = max(0, now_ms() - request.arrival_ms)
    ttft_ms = None if plan.ttft_ms is None else since_ms + plan.ttft_ms
    outcome = store.route(
        sla=entry.sla,
        entry_id=entry.entry_id,
        request=request,
        pool=plan.pool,
        reason=plan.reason,
        plan=Planned(kind=plan.kind, why=plan.why, then_pool=plan.then, predicted_ttft_ms=ttft_ms),
    )
    log.debug(outcome, id=request.id, sla=entry.sla, plan=plan.kind)
    return outcome


def refuse(store: Store, entry: Entry, reject: Reject) -> None:
    """Failed with the reason, where its sender looks; and a dead letter for the operator."""
    assert reject.request_id is not None, "a message of a stream has its entry id"
    end = EndEvent(status="failed", error=reject.reason, code=reject.code)
    outcome = store.refuse(
        sla=entry.sla,
        entry_id=entry.entry_id,
        request_id=reject.request_id,
        tenant=reject.tenant,
        end=end,
        body=body_of(entry),
        webhook=reject.webhook,
        dead=True,
    )
    log.info(outcome, id=reject.request_id, sla=entry.sla, reason=reject.reason)


def turn_away(store: Store, entry: Entry, request: Request, wait_ms: int) -> None:
    """Its tenant has asked for as much as it may: it is told when it may ask again."""
    reason = "this tenant has asked for as much as it may"
    outcome = end_unrouted(store, entry, request, not_now(reason, wait_ms, "rate_limited"))
    log.info("rate limited" if outcome == "refused" else outcome, id=request.id, sla=entry.sla)


def not_now(reason: str, wait_ms: float, code: str) -> EndEvent:
    """The end of a request that would be taken later, and when."""
    retry_after_s = max(1, ceil(wait_ms / 1000))
    error = f"{reason}; ask again in {retry_after_s} s"
    return EndEvent(status="failed", code=code, error=error, retry_after_s=retry_after_s)


def expire(store: Store, entry: Entry, request: Request) -> None:
    """Its deadline passed while it waited: nobody wants the result any more."""
    error = "deadline_ms: the deadline passed before the request could be started"
    end = EndEvent(status="expired", error=error, code="expired")
    outcome = end_unrouted(store, entry, request, end)
    log.info("expired" if outcome == "refused" else outcome, id=request.id, sla=entry.sla)


def end_unrouted(store: Store, entry: Entry, request: Request, end: EndEvent) -> str:
    """An admitted request ends without a pool, and is no dead letter. As Store.refuse."""
    return store.refuse(
        sla=entry.sla,
        entry_id=entry.entry_id,
        request_id=request.id,
        tenant=request.tenant,
        end=end,
        body=b"",
        webhook=request.webhook,
    )


def now_ms() -> int:
    """Unix milliseconds."""
    return time.time_ns() // 1_000_000


def body_of(entry: Entry) -> bytes:
    """The message as it came, for the dead letter: its map, or its plain fields as a map; cut."""
    whole: Any = entry.fields.get(b"m") or msgpack.packb(dict(entry.fields))
    return bytes(whole[:DEAD_BODY_BYTES_MAX])
