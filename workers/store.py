"""The store: Redis clients, and every hand-over as one atomic script (workers/lua, WIRE.md).

A write is never re-sent by the client library: a lost reply would double it. What is retried is a
whole script, by us, because each one tells a repeat from a first time.
"""

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Self, cast

import msgspec
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import OutOfMemoryError, RedisError
from redis.retry import Retry

from workers.kill_point import reach
from workers.script import Value, flat, script_text, text, texts
from workers.settings import Settings
from workers.sla import SlaTable
from workers.wire import (
    GROUP,
    KEEP_S,
    POOLS,
    EndEvent,
    Keys,
    Planned,
    PoolLoad,
    Request,
    TokenEvent,
    WebhookTarget,
)
from workers.wire_fields import (
    end_fields,
    parse_entry,
    parse_job,
    parse_session,
    parse_webhook,
    planned_fields,
    request_fields,
    webhook_fields,
)

OF_FILES: Final = ("writing", "tokens", "generation", "used_ms", "unsaved")  # of a session's hash
CLASSES: Final = SlaTable()
UNPLANNED: Final = Planned()
LATEST_MS: Final = 1 << 62  # an arrival after any deadline


@dataclass(frozen=True, slots=True)
class Accepted:
    """What became of a request at the HTTP door; the entry and status of an id that is known.

    status    "rate_limited": it is more than its tenant may ask for, "key_limited": than its API
              key may, "key_busy": at once; it was not taken
    retry_ms  of such a one: ms until it may be taken
    """

    is_new: bool
    entry_id: str
    status: str
    retry_ms: int = 0


class RateLimited(Exception):
    """A request is more than its tenant may ask for just now.   wait_ms: until it may be taken"""

    def __init__(self, wait_ms: int) -> None:
        super().__init__(f"this tenant may ask again in {wait_ms} ms")
        self.wait_ms = wait_ms


@dataclass(frozen=True, slots=True)
class Promoted:
    """What became of a wish for another class.

    result  "promoted", "demoted", "same" (it has that class), "ended" (before), or "unknown" (also
            of one that a client has put on a stream and no router has read)
    was     the class that it had; "" when that is not known
    """

    result: str
    sla: str
    was: str


class Store:
    """One node's view of Redis. Safe to share between threads."""

    def __init__(
        self,
        url: str,
        keys: Keys,
        *,
        timeout_s: float = 5.0,
        result_ttl_s: int = 4 * 86400,
        lease_s: float = 15.0,
        max_attempts: int = 4,
        requests_per_min: int = 0,
        tokens_per_min: int = 0,
        table: SlaTable = CLASSES,
    ) -> None:
        """requests_per_min, tokens_per_min: what each tenant may ask for; 0: any number."""
        # rq reads its prefix when it is first imported: set before anybody does
        os.environ["RQ_KEY_PREFIX"] = keys.rq_prefix
        self.url = url
        self.keys = keys
        self.timeout_s = timeout_s
        self.result_ttl_s = result_ttl_s
        self.lease_s = lease_s
        self.max_attempts = max_attempts
        self.rates = (requests_per_min, tokens_per_min)
        self.table = table
        self.redis = self.blocking(0.0)
        self._scripts: dict[str, Any] = {}

    @classmethod
    def of(cls, settings: Settings, *, timeout_s: float = 5.0) -> Self:
        """The store that the settings name."""
        return cls(
            settings.url,
            Keys(settings.key_prefix, settings.classes.names),
            timeout_s=timeout_s,
            result_ttl_s=settings.result_ttl_s,
            lease_s=settings.lease_s,
            max_attempts=settings.max_attempts,
            requests_per_min=settings.tenant_requests_per_min,
            tokens_per_min=settings.tenant_tokens_per_min,
            table=settings.classes,
        )

    def blocking(self, block_s: float) -> Redis:
        """A client for reads that block up to block_s: no retries, a timeout beyond the block."""
        return Redis.from_url(
            self.url,
            retry=Retry(NoBackoff(), 0),
            socket_timeout=block_s + self.timeout_s,
            socket_connect_timeout=self.timeout_s,
            protocol=3,
            legacy_responses=True,
        )

    def run(self, name: str, keys: Iterable[str], *arguments: Value) -> Any:
        """Call the script workers/lua/NAME.lua; the common arguments are put before its own."""
        script = self._scripts.get(name)
        if script is None:
            script = self._scripts[name] = self.redis.register_script(script_text(name))
        common = (self.keys.prefix, self.keys.rq_prefix, KEEP_S, self.result_ttl_s)
        reach(f"before {name}")
        said = script(keys=list(keys), args=[*common, *arguments])
        reach(f"after {name}")
        return said

    # --- from the client to a queue ---

    def accept(
        self,
        *,
        request_id: str,
        tenant: str,
        sla: str,
        body: bytes,
        num_tokens: int = 0,
        key: str = "",
        key_limits: tuple[int, int, int] = (0, 0, 0),
        webhook: WebhookTarget | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Accepted:
        """Take a request at the HTTP door: it is accepted when this returns. May be repeated.

        num_tokens: prompt, and output at most, for its tenant's rate. key: name of the API key that
        asks; key_limits: its requests and tokens in a minute, and how many at once. webhook and
        metadata are in the body too; here they are for an end before it is routed.
        """
        keys = [self.keys.requests(sla), self.keys.job(request_id)]
        more = {"metadata": json.dumps(metadata or {}, ensure_ascii=False)}
        pairs = flat(more | webhook_fields(webhook))
        asker = (*self.rates, num_tokens, key, *key_limits)
        told = self.run("accept", keys, sla, tenant, body, *asker, *pairs)
        is_new, entry_id, status, retry_ms = told
        return Accepted(is_new == 1, entry_id.decode(), status.decode(), retry_ms)

    def route(
        self,
        *,
        sla: str,
        entry_id: str,
        request: Request,
        pool: str,
        reason: str,
        plan: Planned = UNPLANNED,
    ) -> str:
        """Hand an admitted request from its stream to a pool's queue.

        Gives "routed", "waits" (for its session), "duplicate" (the id is known; the entry is gone)
        or "not-mine" (another router did it). Raises RateLimited: the entry is where it was. What
        came by a stream is charged to its tenant's rate in the same step.
        """
        keys = [self.keys.requests(sla), self.keys.job(request.id), self.keys.rq_job(request.id)]
        keys += [self.keys.queue(pool), self.keys.active]
        rank = self.table[request.sla].rank_ms(request.arrival_ms, request.deadline_ms)
        fields = flat(request_fields(request, reason) | planned_fields(plan) | {"rank": rank})
        rate = (*self.rates, request.tenant, len(request.token_ids) + request.params.max_tokens)
        told = self.run("route", keys, GROUP, entry_id, request.id, pool, *rate, *fields)
        if isinstance(told, int):
            raise RateLimited(told)
        outcome = text(told)
        if outcome in ("routed", "waits"):
            self.count(self.keys.placements, f"{plan.kind or pool} {plan.why or 'unplanned'}")
        return outcome

    def refuse(
        self,
        *,
        sla: str,
        entry_id: str,
        request_id: str,
        tenant: str,
        end: EndEvent,
        body: bytes,
        webhook: WebhookTarget | None = None,
        dead: bool = False,
        unread: bool = False,
    ) -> str:
        """End a stream entry that will not run; dead also keeps it in the dead letters.

        unread: one that no router has read, and that the HTTP door did not accept

        Gives "refused", "duplicate" (the id is known: only the entry goes), "not-mine", or, of an
        unread one, "accepted" by that door: it stays.
        """
        keys = [self.keys.requests(sla), self.keys.job(request_id)]
        hook = webhook_fields(webhook)
        arguments: list[Value] = [GROUP, entry_id, request_id, sla, tenant, body]
        arguments += [int(dead), int(unread)]
        pairs: list[Value] = [len(hook), *flat(hook), *flat(end_fields(end))]
        return text(self.run("refuse", keys, *arguments, *pairs))

    def cancel(self, request_id: str, *, unseen: bool = False) -> str:
        """End a request that waits, or tell the pool that runs it.

        unseen  also one that its client has put on a stream and no router has read: its id is
                taken, so that it does not run when it is read

        Gives "cancelled", "cancelling", "ended" (before) or "unknown".
        """
        end = EndEvent(status="cancelled", code="cancelled", error="cancelled by the client")
        keys = [self.keys.job(request_id), self.keys.control]
        return text(self.run("cancel", keys, request_id, int(unseen), *flat(end_fields(end))))

    def give_up(self, request_id: str, pool: str, reason: str) -> bool:
        """End a request that waits in a pool's queue, and that nobody can run any more, as failed.

        False: it does not wait there any more.
        """
        end = EndEvent(status="failed", code="no_pool", error=reason)
        names = (request_id, pool)
        ended = self.run("give_up", [self.keys.job(request_id)], *names, *flat(end_fields(end)))
        return bool(ended == 1)

    def count(self, key: str, field: str) -> None:
        """One more, for /metrics: what the store does not take is not counted."""
        with suppress(RedisError), self.redis.pipeline(transaction=False) as pipeline:
            pipeline.hincrby(key, field, 1)
            pipeline.expire(key, KEEP_S)
            pipeline.execute()

    def promote(self, request_id: str, sla: str) -> Promoted:
        """Give a request another class, wherever it is; its client notices nothing but the speed.

        Raises ValueError for a class that does not exist.
        """
        classes = self.keys.classes
        if sla not in classes:
            raise ValueError(f"sla: must be one of {', '.join(classes)}, got {sla!r}")
        keys, rank_ms = [self.keys.job(request_id), self.keys.control], self.table[sla].rank_ms
        ranks = (rank_ms(0), rank_ms(LATEST_MS, 0))
        result, was = texts(self.run("promote", keys, request_id, sla, GROUP, *ranks, *classes))
        return Promoted(result, sla, was)

    def reap(self, pool: str, *, at_most: int = 64) -> list[str]:
        """Put back what workers hold that have been silent for lease_s."""
        return texts(self.run("reap", [self.keys.wip(pool)], pool, self.max_attempts, at_most))

    def expire_late(self) -> list[str]:
        """End what waits in a queue or for its session, and whose deadline has passed; the ids."""
        return texts(self.run("expire_late", [self.keys.deadlines]))

    # --- sessions, by their full ids ---

    def session(self, session: str) -> dict[str, Any]:
        """What is known of a session; empty: nothing.

        holder      the request that is in a queue or runs; absent: none
        waiting     how many wait for it
        fence       claims of its requests so far; home, pool: the worker and pool of the last one
        writing, tokens, generation, used_ms: what pools noted
        """
        with self.redis.pipeline(transaction=False) as pipeline:
            pipeline.hgetall(self.keys.session(session))
            pipeline.llen(self.keys.session_waiting(session))
            raw, waiting = pipeline.execute(raise_on_error=False)
        for reply in (raw, waiting):
            if isinstance(reply, Exception) and not str(reply).startswith("WRONGTYPE"):
                raise reply  # a key of another type is put right by the next script
        count = waiting if isinstance(waiting, int) else 0
        return {**parse_session(raw), "waiting": count} if raw and isinstance(raw, dict) else {}

    def session_forget(self, session: str) -> None:
        """Its files are deleted on purpose: a later request of that id begins a new one.

        Who holds it, and who waits for it, stays.
        """
        self.run("session_forget", [self.keys.session(session)], session, *OF_FILES)

    def move(self, request_id: str, pool: str, reason: str = "") -> str:
        """Have another pool go on with a request. reason: why, for a person who looks at the job.

        Gives "moving" (its pool is told: `move ID POOL`), "moved" (it waited, or is there), "ended"
        or "unknown" (also of one that no router has seen). Raises ValueError for no pool.
        """
        if pool not in POOLS:
            raise ValueError(f"pool: must be one of {', '.join(POOLS)}, got {pool!r}")
        keys = [self.keys.job(request_id), self.keys.control]
        return text(self.run("move", keys, request_id, pool, reason))

    # --- what anybody may read ---

    def job(self, request_id: str) -> dict[str, Any] | None:
        """The job's hash, parsed; None when there is none."""
        raw = cast(dict[bytes, bytes], self.redis.hgetall(self.keys.job(request_id)))
        return {"id": request_id, **parse_job(raw)} if raw else None

    def webhook(self, request_id: str) -> dict[str, Any]:
        """What is known of a request's webhook: url, state, attempts, ...; empty: it has none."""
        raw = self.redis.hgetall(self.keys.webhook(request_id))
        return parse_webhook(cast(dict[bytes, bytes], raw))

    def tokens(
        self, request_id: str, after: str = "0-0"
    ) -> list[tuple[str, TokenEvent | EndEvent]]:
        """The journal's entries after an entry id."""
        entries = self.redis.xrange(self.keys.tokens(request_id), min=f"({after}", max="+")
        pairs = cast(list[tuple[bytes, dict[bytes, bytes]]], entries)
        return [(entry_id.decode(), parse_entry(entry_id, fields)) for entry_id, fields in pairs]

    # --- what pools say of themselves ---

    def loads(self) -> list[PoolLoad]:
        """What every living pool said last."""
        keys = sorted(cast(set[bytes], self.redis.smembers(self.keys.pools)))
        if not keys:
            return []
        reports = cast(list[bytes | None], self.redis.mget(keys))
        silent = [key for key, report in zip(keys, reports, strict=True) if report is None]
        if silent:
            self.redis.srem(self.keys.pools, *silent)
        return [msgspec.json.decode(report, type=PoolLoad) for report in reports if report]


def is_full(error: Exception) -> bool:
    """Whether the store refuses writes, for its memory is full or its disk (MISCONF)."""
    return isinstance(error, OutOfMemoryError) or str(error).startswith("MISCONF")


def is_busy(error: Exception) -> bool:
    """Whether the store answers nobody just now: somebody's script runs too long in it."""
    return str(error).startswith("BUSY ")
