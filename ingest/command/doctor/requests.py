"""Requests and webhooks: what is stuck, what was given up, what another version has written."""

import time
from collections.abc import Iterator
from typing import Any, Final, cast

from redis.exceptions import ResponseError

from ingest.command.doctor.finding import Finding, wrong
from router.entry import read_entry
from router.refusal import Refused
from workers.store import Store
from workers.wire import GROUP, VERSION
from workers.wire_fields import parse_request

LATE_S: Final = 60.0  # a lease that ended so long ago is nobody's; a message that waits so long
LEASE_SLACK_S: Final = 3600  # a lease ends at score - this (workers/lua/lease.lua)
LOOK: Final = 200  # requests, messages, dead letters


def examine(store: Store) -> Iterator[Finding]:
    found = [*stuck_leases(store), *stuck_messages(store), *versions(store)]
    yield from found or [Finding("requests", "none is stuck")]
    yield from dead_letters(store)


def stuck_leases(store: Store) -> Iterator[Finding]:
    """Requests whose worker is gone, and which nobody takes up."""
    seconds, _ = store.redis.time()
    for pool in store.keys.own_pools:
        late = seconds + LEASE_SLACK_S - LATE_S
        members = store.redis.zrangebyscore(store.keys.wip(pool), "-inf", late, 0, LOOK)
        if members:
            first = cast(bytes, members[0]).rpartition(b":")[0].decode()
            what = f"{len(members)} run on no worker (the first: {first})"
            todo = f"start a router, or the {pool} pool: each takes them up within seconds"
            yield wrong("requests-stuck", f"pool {pool}", what, todo)


def stuck_messages(store: Store) -> Iterator[Finding]:
    """Messages that a router has read and not got on with."""
    for sla in store.keys.classes:
        try:
            pending = store.redis.xpending_range(
                store.keys.requests(sla), GROUP, "-", "+", LOOK, idle=int(LATE_S * 1000)
            )
        except ResponseError:  # no router has ever been here
            continue
        if pending:
            what = f"{len(pending)} of {sla} were read long ago, and nothing became of them"
            todo = "restart the router: kill its process, its keeper starts it again"
            yield wrong("requests-stuck", "router", what, todo)


def versions(store: Store) -> Iterator[Finding]:
    """What lies in streams and jobs must be of a version that this node reads."""
    old = [found for sla in store.keys.classes for found in messages_of_others(store, sla)]
    if old:
        what = f"{len(old)} messages are not of version {VERSION}: {old[0]}"
        todo = "update whoever sent them: they are refused as they are read"
        yield wrong("wire-version", "requests", what, todo)
    unread = [request_id for request_id in active(store) if not is_readable(store, request_id)]
    if unread:
        what = f"{len(unread)} requests were written by another version (the first: {unread[0]})"
        todo = "run the same version on all nodes; lockstep cancel ID ends one"
        yield wrong("wire-version", "requests", what, todo)


def messages_of_others(store: Store, sla: str) -> Iterator[str]:
    """Why messages at the front of a stream will be refused as another version's."""
    entries = store.redis.xrange(store.keys.requests(sla), count=LOOK)
    for entry_id, raw in cast(list[tuple[bytes, dict[bytes, bytes]]], entries):
        try:
            fields, _ = read_entry(raw)
        except Refused as refused:
            yield f"{sla} {entry_id.decode()}: {refused.reason}"
            continue
        version = fields.get("v", VERSION)
        if version not in (VERSION, str(VERSION)):
            yield f"{sla} {entry_id.decode()}: v is {version!r}"


def active(store: Store) -> list[str]:
    ids = cast(list[bytes], store.redis.zrange(store.keys.active, 0, LOOK - 1))
    return [request_id.decode() for request_id in ids]


def is_readable(store: Store, request_id: str) -> bool:
    """Whether this version can run what lies in a job."""
    raw = cast(bytes | None, store.redis.hget(store.keys.job(request_id), "request"))
    if raw is None:  # it has ended meanwhile
        return True
    try:
        parse_request(raw)
    except ValueError:
        return False
    return True


def dead_letters(store: Store) -> Iterator[Finding]:
    """What was given up in the last day."""
    since_ms = int((time.time() - 86_400) * 1000)
    entries: Any = store.redis.xrevrange(store.keys.dead, "+", str(since_ms), count=LOOK)
    webhooks = [letter for _, letter in entries if letter.get(b"kind") == b"webhook"]
    poison = [letter for _, letter in entries if letter.get(b"code") == b"poison"]
    for name, letters, whose in (
        ("webhooks-dead", webhooks, "webhooks were taken by nobody"),
        ("requests-dead", poison, "requests took their worker along each time"),
    ):
        if letters:
            reason = letters[0].get(b"reason", b"").decode()
            what = f"in the last day {len(letters)} {whose}: {reason}"
            todo = "lockstep dead list says more; lockstep dead replay tries one again"
            yield wrong(name, "dead", what, todo)
    if not webhooks and not poison:
        yield Finding("dead", "nothing was given up in the last day")
