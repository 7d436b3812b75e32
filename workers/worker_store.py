"""The store as workers use it: what they claim is theirs until it ends, goes back, or is lost.

Whatever a worker writes is fenced by its lease: after the lease is lost nothing of it is written.
"""

import base64
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, cast

import msgspec

from workers.script import Value, flat, texts
from workers.store import Store
from workers.wire import KEEP_S, WEBHOOKS, EndEvent, PoolLoad, Request, TokenEvent, token_entry_id
from workers.wire_fields import end_fields, parse_request, token_fields

NO_MORE: Final[Mapping[str, int]] = MappingProxyType({})
FORGET_BATCH: Final = 1000  # jobs of one call: a store is not to be held up by it
LOAD_TTL_S: Final = 5  # a pool that is silent for so long is gone


@dataclass(frozen=True, slots=True)
class Claimed:
    """An item that a worker holds a lease on.

    job_id        the request's id; of a webhook attempt RQ's job id
    execution_id  the fence: whatever is written for it names it
    attempts      deliveries without a new token, this one included
    request       what is asked; None for webhooks, and when it cannot be read
    fence         the session's fence, one more with each claim; 0: it belongs to no session
    then_pool     the pool that is to go on after the first token; None: this one
    is_first      nobody has claimed it before: it has no journal
    weights       and arithmetic, by which its tokens were made; "": not said
    """

    job_id: str
    execution_id: str
    attempts: int
    request: Request | None
    fence: int = 0
    then_pool: str | None = None
    is_first: bool = False
    weights: str = ""

    @property
    def alone(self) -> bool:
        """Its workers died twice: it gets no neighbours (claim.lua)."""
        return self.request is not None and self.attempts > 2


@dataclass(frozen=True, slots=True)
class BeatReply:
    """What a worker hears back: ids it lost, ids to be cancelled, whether RQ knows it.

    classes  the SLA classes that its other requests have now, by id
    """

    lost: list[str]
    cancelled: list[str]
    is_known: bool
    classes: dict[str, str]


@dataclass(frozen=True, slots=True)
class Said:
    """What a worker says of one execution: tokens, then its end if it ends.

    text   of an end: all that the request printed
    after  of an end without tokens: how many the journal must hold; 0: it is not looked at
    """

    item: Claimed
    tokens: Sequence[TokenEvent] = ()
    end: EndEvent | None = None
    text: str = ""
    after: int = 0

    @property
    def before(self) -> int:
        """How many tokens the journal must hold already."""
        return self.tokens[0].index if self.tokens else self.after


class WorkerStore(Store):
    """One worker's view of Redis. Safe to share between threads.

    weights  what its pool computes with, weights and arithmetic; "": it has not said so
    """

    weights = ""

    def claim(
        self,
        pool: str,
        worker: str,
        room: int,
        *,
        idle: bool = True,
        extra: Mapping[str, int] = NO_MORE,
    ) -> list[Claimed]:
        """Take up to room items of a queue.

        idle   the worker runs nothing else
        extra  so many more of a class, which displace less urgent ones that the worker has
        """
        most = room + max(extra.values(), default=0)
        raw = os.urandom(8 * most).hex()
        executions = [raw[16 * i : 16 * i + 16] for i in range(most)]
        keys = [self.keys.queue(pool), self.keys.rq_suspended]
        told = msgspec.json.encode(dict(extra))
        limits = (room, self.lease_s, self.max_attempts, int(idle), told, self.weights)
        return [
            claimed(*row) for row in self.run("claim", keys, pool, worker, *limits, *executions)
        ]

    def beat(
        self, pool: str, worker: str, held: Iterable[Claimed], *, worker_ttl_s: int = 90
    ) -> BeatReply:
        """Renew the leases of what a worker holds, and its registration."""
        pairs = [part for item in held for part in (item.job_id, item.execution_id)]
        keys = [self.keys.worker(worker)]
        lost, cancelled, known, classes = self.run(
            "beat", keys, pool, worker, self.lease_s, worker_ttl_s, *pairs
        )
        words = iter(texts(classes))
        return BeatReply(
            texts(lost), texts(cancelled), known == 1, dict(zip(words, words, strict=True))
        )

    def tell(self, pool: str, worker: str, told: Sequence[Said]) -> list[bool]:
        """Write what was said of each execution, all of it or nothing. May be repeated.

        Gives for each whether it was written; False: its lease is lost.
        """
        arguments: list[Value] = []
        for said in told:
            arguments += [said.item.job_id, said.item.execution_id]
            arguments += [said.before, len(said.tokens)]
            for event in said.tokens:
                fields = flat(token_fields(event))
                arguments += [token_entry_id(event.index), len(fields), *fields]
            arguments += [0] if said.end is None else end_arguments(said.end, said.text)
        lost = self.run("tell", [self.keys.worker(worker)], pool, worker, *arguments)
        return [place not in lost for place in range(1, len(told) + 1)]

    def journal(self, pool: str, told: Iterable[tuple[Claimed, Sequence[TokenEvent]]]) -> list[str]:
        """Tokens alone; gives the ids whose lease is lost."""
        said = [Said(item, events) for item, events in told]
        kept = self.tell(pool, "", said)
        return [one.item.job_id for one, is_kept in zip(said, kept, strict=True) if not is_kept]

    def finish(self, pool: str, worker: str, item: Claimed, end: EndEvent, text: str) -> bool:
        """One end alone; False: the lease is lost."""
        return self.tell(pool, worker, [Said(item, end=end, text=text)])[0]

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

    def note_cached(self, request_id: str, num_tokens: int) -> None:
        """So many tokens of a request's prompt were there when its KV began to be written.

        The smallest of all owners' numbers is told at its end. May be repeated, by anybody.
        """
        self.run("note_cached", [self.keys.job(request_id)], num_tokens)

    def recover(self, pool: str, dead_worker: str) -> list[str]:
        """Put back what a dead worker of this name held."""
        keys = [self.keys.worker_executions(dead_worker)]
        return texts(self.run("recover", keys, pool, self.max_attempts))

    def reconcile(self, *, force: bool = False) -> list[str]:
        """Put back requests that are in no queue and on no worker; force looks at each one."""
        arguments: list[Value] = [self.max_attempts, int(force), *self.queues()]
        return texts(self.run("reconcile", [self.keys.active], *arguments))

    def queues(self) -> list[str]:
        """The pools' queues: this node's, or all that its fleet has had."""
        if not self.keys.node:
            return list(self.keys.own_pools)
        known = cast(set[bytes], self.redis.smembers(f"{self.keys.rq_prefix}:queues"))
        names = {key.decode().removeprefix(self.keys.queue("")) for key in known}
        return sorted((names | set(self.keys.own_pools)) - {WEBHOOKS})

    def forget_jobs(self) -> None:
        """Take what has expired out of the lists of jobs, and out of RQ's registries."""
        while self.run("forget_jobs", [self.keys.jobs], FORGET_BATCH) == FORGET_BATCH:
            pass
        seconds, _ = self.redis.time()
        with self.redis.pipeline(transaction=False) as pipeline:
            for key in self.keys.registries():
                pipeline.zremrangebyscore(key, 0, seconds)
            pipeline.execute()

    def keep(self) -> None:
        """Renew the expiry of the node's keys."""
        with self.redis.pipeline(transaction=False) as pipeline:
            for key in self.keys.lasting() + self.keys.registries():
                pipeline.expire(key, KEEP_S)
            pipeline.execute()

    # --- what a pool says of itself ---

    def report(self, load: PoolLoad) -> None:
        """Say how this pool is; silence of LOAD_TTL_S seconds means it is gone."""
        key = self.keys.pool(load.pool, load.worker)
        with self.redis.pipeline(transaction=False) as pipeline:
            pipeline.set(key, msgspec.json.encode(load), ex=LOAD_TTL_S)
            pipeline.sadd(self.keys.pools, key)
            pipeline.expire(self.keys.pools, KEEP_S)
            pipeline.execute()


def end_arguments(end: EndEvent, text: str) -> list[Value]:
    """An end as tell.lua takes it: width, RQ's result, the whole text, the end event."""
    output_tokens = end.usage.output_tokens if end.usage else 0
    told = {"status": end.status, "digest": end.digest, "output_tokens": output_tokens}
    result = base64.b64encode(msgspec.msgpack.encode(told))
    fields = flat(end_fields(end))
    return [len(fields), result, text, *fields]


def claimed(
    job_id: bytes,
    execution_id: bytes,
    request: bytes,
    attempts: int,
    fence: int,
    sla: bytes,
    then_pool: bytes,
    is_first: int,
    weights: bytes,
) -> Claimed:
    """One row of claim.lua; the request has the class that it has now, not the one it came with."""
    try:
        asked = parse_request(request) if request else None
    except ValueError:  # written by another version, or by hand: its pool ends it
        asked = None
    if asked is not None and sla and asked.sla != sla.decode():
        asked = msgspec.structs.replace(asked, sla=sla.decode())
    return Claimed(
        job_id.decode(),
        execution_id.decode(),
        attempts,
        asked,
        fence,
        then_pool.decode() or None,
        is_first == 1,
        weights.decode(),
    )
