"""The store: Redis clients, and every hand-over as one atomic script (workers/lua, WIRE.md).

A write is never re-sent by the client library: a lost reply would double it. What is retried is a
whole script, by us, because each one tells a repeat from a first time.
"""

import base64
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import msgspec
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import OutOfMemoryError
from redis.retry import Retry

from workers.settings import Settings
from workers.wire import (
    GROUP,
    KEEP_S,
    POOLS,
    EndEvent,
    Keys,
    PoolLoad,
    Request,
    TokenEvent,
    WebhookTarget,
    token_entry_id,
)
from workers.wire_fields import (
    end_fields,
    parse_entry,
    parse_job,
    parse_session,
    parse_webhook,
    request_fields,
    token_fields,
    webhook_fields,
)

LUA: Final = Path(__file__).parent / "lua"
LOAD_TTL_S: Final = 5  # a pool that is silent for so long is gone
Value = str | bytes | int | float
Fields = Mapping[str, str | int | bytes]


@dataclass(frozen=True, slots=True)
class Accepted:
    """What became of a request at the HTTP door; the entry and status of an id that is known."""

    is_new: bool
    entry_id: str
    status: str


@dataclass(frozen=True, slots=True)
class Claimed:
    """An item that a worker holds a lease on.

    job_id        the request's id; of a webhook attempt RQ's job id
    execution_id  the fence: whatever is written for it names it
    attempts      deliveries without a new token, this one included
    request       what is asked; None for webhooks, and when it cannot be read
    fence         the session's fence, one more with each claim; 0: it belongs to no session
    """

    job_id: str
    execution_id: str
    attempts: int
    request: Request | None
    fence: int = 0

    @property
    def alone(self) -> bool:
        """Its workers died twice: it gets no neighbours (claim.lua)."""
        return self.request is not None and self.attempts > 2


@dataclass(frozen=True, slots=True)
class BeatReply:
    """What a worker hears back: ids it lost, ids to be cancelled, whether RQ knows it."""

    lost: list[str]
    cancelled: list[str]
    is_known: bool


def script_text(name: str) -> str:
    """The script with the files of its `-- include NAME` lines in their places."""
    lines = (LUA / f"{name}.lua").read_text().splitlines()
    return "\n".join(
        script_text(line.removeprefix("-- include ")) if line.startswith("-- include ") else line
        for line in lines
    )


def flat(fields: Fields) -> list[Value]:
    """Fields as scripts take them: name, value, name, value, ..."""
    return [item for pair in fields.items() for item in pair]


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
    ) -> None:
        # rq reads its prefix when it is first imported: set before anybody does
        os.environ["RQ_KEY_PREFIX"] = keys.rq_prefix
        self.url = url
        self.keys = keys
        self.timeout_s = timeout_s
        self.result_ttl_s = result_ttl_s
        self.lease_s = lease_s
        self.max_attempts = max_attempts
        self.redis = self.blocking(0.0)
        self._scripts: dict[str, Any] = {}

    @classmethod
    def of(cls, settings: Settings, *, timeout_s: float = 5.0) -> "Store":
        """The store that the settings name."""
        return cls(
            settings.url,
            Keys(settings.key_prefix),
            timeout_s=timeout_s,
            result_ttl_s=settings.result_ttl_s,
            lease_s=settings.lease_s,
            max_attempts=settings.max_attempts,
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
        return script(keys=list(keys), args=[*common, *arguments])

    # --- from the client to a queue ---

    def accept(
        self,
        *,
        request_id: str,
        tenant: str,
        sla: str,
        body: bytes,
        webhook: WebhookTarget | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Accepted:
        """Take a request at the HTTP door: it is accepted when this returns. May be repeated.

        webhook and metadata are in the body too; here they are for an end before it is routed.
        """
        keys = [self.keys.requests(sla), self.keys.job(request_id)]
        more = {"metadata": json.dumps(metadata or {}, ensure_ascii=False)}
        pairs = flat(more | webhook_fields(webhook))
        is_new, entry_id, status = self.run("accept", keys, sla, tenant, body, *pairs)
        return Accepted(is_new == 1, entry_id.decode(), status.decode())

    def route(self, *, sla: str, entry_id: str, request: Request, pool: str, reason: str) -> str:
        """Hand an admitted request from its stream to a pool's queue.

        Gives "routed", "waits" (for its session), "duplicate" (the id is known; the entry is gone)
        or "not-mine" (another router did it).
        """
        keys = [self.keys.requests(sla), self.keys.job(request.id), self.keys.rq_job(request.id)]
        keys += [self.keys.queue(pool), self.keys.active]
        fields = flat(request_fields(request, reason))
        return text(self.run("route", keys, GROUP, entry_id, request.id, pool, *fields))

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
    ) -> str:
        """End a stream entry that will not run; dead also keeps it in the dead letters.

        Gives "refused", "duplicate" (the id is known: only the entry goes) or "not-mine".
        """
        keys = [self.keys.requests(sla), self.keys.job(request_id)]
        hook = webhook_fields(webhook)
        arguments: list[Value] = [GROUP, entry_id, request_id, sla, tenant, body, int(dead)]
        pairs: list[Value] = [len(hook), *flat(hook), *flat(end_fields(end))]
        return text(self.run("refuse", keys, *arguments, *pairs))

    def cancel(self, request_id: str) -> str:
        """End a request that waits, or tell the pool that runs it.

        Gives "cancelled", "cancelling", "ended" (before) or "unknown".
        """
        end = EndEvent(status="cancelled", code="cancelled", error="cancelled by the client")
        keys = [self.keys.job(request_id), self.keys.control]
        return text(self.run("cancel", keys, request_id, *flat(end_fields(end))))

    # --- in the hands of a worker ---

    def claim(self, pool: str, worker: str, room: int, *, idle: bool = True) -> list[Claimed]:
        """Take up to room items of a queue; idle says that the worker runs nothing else."""
        raw = os.urandom(8 * room).hex()
        executions = [raw[16 * i : 16 * i + 16] for i in range(room)]
        keys = [self.keys.queue(pool), self.keys.rq_suspended]
        limits = (room, self.lease_s, self.max_attempts, int(idle))
        return [
            claimed(*row) for row in self.run("claim", keys, pool, worker, *limits, *executions)
        ]

    def beat(
        self, pool: str, worker: str, held: Iterable[Claimed], *, worker_ttl_s: int = 90
    ) -> BeatReply:
        """Renew the leases of what a worker holds, and its registration."""
        pairs = [part for item in held for part in (item.job_id, item.execution_id)]
        keys = [self.keys.worker(worker)]
        lost, cancelled, known = self.run(
            "beat", keys, pool, worker, self.lease_s, worker_ttl_s, *pairs
        )
        return BeatReply(texts(lost), texts(cancelled), known == 1)

    def journal(self, pool: str, told: Iterable[tuple[Claimed, Sequence[TokenEvent]]]) -> list[str]:
        """Write the tokens of one step; gives the ids whose lease is lost. May be repeated."""
        arguments: list[Value] = []
        for item, events in told:
            arguments += [item.job_id, item.execution_id, len(events)]
            for event in events:
                fields = flat(token_fields(event))
                arguments += [token_entry_id(event.index), len(fields), *fields]
        return texts(self.run("journal", [self.keys.wip(pool)], pool, *arguments))

    def finish(self, pool: str, worker: str, item: Claimed, end: EndEvent, text: str) -> bool:
        """End a request that this worker runs; text is all of it. May be repeated.

        False: the lease was lost, nothing is written.
        """
        output_tokens = end.usage.output_tokens if end.usage else 0
        told = {"status": end.status, "digest": end.digest, "output_tokens": output_tokens}
        result = base64.b64encode(msgspec.msgpack.encode(told))
        keys = [self.keys.job(item.job_id), self.keys.worker(worker)]
        names = (pool, worker, item.job_id, item.execution_id)
        return bool(self.run("finish", keys, *names, result, text, *flat(end_fields(end))) == 1)

    def hand_back(self, pool: str, held: Iterable[Claimed]) -> list[str]:
        """Give items back to the front of their queue; no attempt is burnt."""
        pairs = [part for item in held for part in (item.job_id, item.execution_id)]
        return texts(
            self.run("hand_back", [self.keys.queue(pool)], pool, self.max_attempts, *pairs)
        )

    def hand_over(self, pool: str, item: Claimed, target_pool: str) -> bool:
        """Give a request to the front of another pool's queue; no attempt is burnt.

        False: the lease was lost, or the request ended instead. May be repeated.
        """
        keys = [self.keys.job(item.job_id)]
        names = (item.job_id, item.execution_id, target_pool)
        return bool(self.run("hand_over", keys, pool, self.max_attempts, *names) == 1)

    def compose(self, item: Claimed, request: Request, *, forked_at: int | None = None) -> bool:
        """Write the composed prompt of a session's request into its job. May be repeated.

        False: the lease was lost, nothing is written.
        """
        keys = [self.keys.job(item.job_id)]
        told = (msgspec.msgpack.encode(request), len(request.token_ids))
        forked = "" if forked_at is None else forked_at
        names = (item.job_id, item.execution_id)
        return bool(self.run("compose", keys, *names, *told, forked) == 1)

    def recover(self, pool: str, dead_worker: str) -> list[str]:
        """Put back what a dead worker of this name held."""
        keys = [self.keys.worker_executions(dead_worker)]
        return texts(self.run("recover", keys, pool, self.max_attempts))

    def reap(self, pool: str, *, at_most: int = 64) -> list[str]:
        """Put back what workers hold that have been silent for lease_s."""
        return texts(self.run("reap", [self.keys.wip(pool)], pool, self.max_attempts, at_most))

    def reconcile(self, *, force: bool = False) -> list[str]:
        """Put back requests that are in no queue and on no worker; force looks at each one."""
        arguments = (self.max_attempts, int(force), *POOLS)
        return texts(self.run("reconcile", [self.keys.active], *arguments))

    def keep(self) -> None:
        """Renew the expiry of the node's keys; forget in RQ's registries what has expired."""
        ended = self.keys.registries()
        seconds, _ = self.redis.time()
        with self.redis.pipeline(transaction=False) as pipeline:
            for key in ended:
                pipeline.zremrangebyscore(key, 0, seconds)
            for key in self.keys.lasting() + ended:
                pipeline.expire(key, KEEP_S)
            pipeline.execute()

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
            raw, waiting = pipeline.execute()
        return {**parse_session(raw), "waiting": waiting} if raw else {}

    def session_note(self, session: str, **fields: str | int) -> None:
        """Say something of a session: writing, tokens, generation, used_ms, home, pool."""
        key = self.keys.session(session)
        with self.redis.pipeline(transaction=False) as pipeline:
            pipeline.hset(key, mapping=cast(Any, fields))
            pipeline.expire(key, KEEP_S)
            pipeline.execute()

    def move(self, request_id: str, pool: str) -> str:
        """Have another pool go on with a request.

        Gives "moving" (its pool is told: `move ID POOL`), "moved" (it waited, or is there), "ended"
        or "unknown" (also of one that no router has seen). Raises ValueError for no pool.
        """
        if pool not in POOLS:
            raise ValueError(f"pool: must be one of {', '.join(POOLS)}, got {pool!r}")
        keys = [self.keys.job(request_id), self.keys.control]
        return text(self.run("move", keys, request_id, pool))

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

    def report(self, load: PoolLoad) -> None:
        """Say how this pool is; silence of LOAD_TTL_S seconds means it is gone."""
        key = self.keys.pool(load.pool, load.worker)
        with self.redis.pipeline(transaction=False) as pipeline:
            pipeline.set(key, msgspec.json.encode(load), ex=LOAD_TTL_S)
            pipeline.sadd(self.keys.pools, key)
            pipeline.expire(self.keys.pools, KEEP_S)
            pipeline.execute()

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


def claimed(
    job_id: bytes, execution_id: bytes, request: bytes, attempts: int, fence: int
) -> Claimed:
    try:
        asked = msgspec.msgpack.decode(request, type=Request) if request else None
    except msgspec.MsgspecError:  # written by another version, or by hand: its pool ends it
        asked = None
    return Claimed(job_id.decode(), execution_id.decode(), attempts, asked, fence)


def is_full(error: Exception) -> bool:
    """Whether the store refuses writes, for its memory is full or its disk (MISCONF)."""
    return isinstance(error, OutOfMemoryError) or str(error).startswith("MISCONF")


def text(reply: bytes) -> str:
    return reply.decode()


def texts(reply: list[bytes]) -> list[str]:
    return [item.decode() for item in reply]
