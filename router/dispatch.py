"""What the router does to a message once it is decided: one atomic script, one line of log."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgpack

from router.admit import Reject, reject_entry
from router.consumer import Entry
from router.not_now import TOO_MUCH, not_now
from router.placement import Plan
from router.refusal import Refused
from workers.address import Networks
from workers.clock import now_ms
from workers.log import logger
from workers.store import RateLimited, Routing, Store
from workers.wire import EndEvent, Planned, Request

DEAD_BODY_BYTES_MAX: Final = 16_384  # of a message, kept in its dead letter

log = logger("router")


def dispatch(store: Store, planned: Sequence[tuple[Entry, Request, Plan]]) -> list[str]:
    """Into the queues of their pools, or behind their sessions' other requests; all by one call.

    Gives what became of each, as Store.route_all; "rate limited": its tenant has asked for as much
    as it may, and it has ended.
    """
    outcomes = store.route_all([routing(*one) for one in planned])
    told = []
    for (entry, request, plan), outcome in zip(planned, outcomes, strict=True):
        if isinstance(outcome, RateLimited):
            turn_away(store, entry, request, outcome.wait_ms)
            outcome = "rate limited"
        log.debug(outcome, id=request.id, sla=entry.sla, plan=plan.kind)
        told.append(outcome)
    return told


def routing(entry: Entry, request: Request, plan: Plan) -> Routing:
    """What the store is told of a request and its plan."""
    since_ms = max(0, now_ms() - request.arrival_ms)
    ttft_ms = None if plan.ttft_ms is None else since_ms + plan.ttft_ms
    planned = Planned(kind=plan.kind, why=plan.why, then_pool=plan.then, predicted_ttft_ms=ttft_ms)
    return Routing(entry.sla, entry.entry_id, request, plan.pool, plan.reason, planned)


def refuse_message(
    store: Store, allow: Networks, entry: Entry, refused: Refused, fields: Mapping[str, Any]
) -> None:
    """A message that is not to be admitted, whatever it asks for.   fields: what is known of it"""
    reject = reject_entry(
        refused, sla=entry.sla, entry_id=entry.entry_id, fields=fields, allow=allow
    )
    refuse(store, entry, reject)


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
    end = not_now(TOO_MUCH["rate_limited"], wait_ms, "rate_limited")
    outcome = end_unrouted(store, entry, request, end)
    log.info("rate limited" if outcome == "refused" else outcome, id=request.id, sla=entry.sla)


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


def body_of(entry: Entry) -> bytes:
    """The message as it came, for the dead letter: its map, or its plain fields as a map; cut."""
    whole: Any = entry.fields.get(b"m") or msgpack.packb(dict(entry.fields))
    return bytes(whole[:DEAD_BODY_BYTES_MAX])
