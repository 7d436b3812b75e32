"""The store: every hand-over from client to queue as one atomic script (workers/lua, WIRE.md).

How a worker uses it: worker_store.py. What anybody may read: store_reading.py. Connections and how
scripts are called: store_client.py.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from redis.exceptions import OutOfMemoryError, RedisError

from workers.fleet.names import MARK, PROCESSORS, node_of, processor_of
from workers.script import Value, flat, text, texts
from workers.store_reading import StoreReading
from workers.trace.parent import new_traceparent
from workers.wire import (
    GROUP,
    KEEP_S,
    EndEvent,
    Planned,
    Request,
    WebhookTarget,
)
from workers.wire_fields import (
    end_fields,
    planned_fields,
    request_fields,
    webhook_fields,
)

OF_FILES: Final = (  # of a session's hash
    *("writing", "tokens", "generation", "committed", "used_ms", "unsaved"),
)
UNPLANNED: Final = Planned()
ROUTED_PER_CALL: Final = 32  # one takes the store some 0.05 ms, in which it does nothing else
PASSED_MS: Final = 100  # between nodes that try in vain, however many there are
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


@dataclass(frozen=True, slots=True)
class Routing:
    """An admitted request and its way into a queue.

    sla, entry_id  the stream it is in, and its entry there
    reason         why this pool, for a person
    """

    sla: str
    entry_id: str
    request: Request
    pool: str
    reason: str
    plan: Planned = UNPLANNED


class Store(StoreReading):
    """One node's view of Redis. Safe to share between threads."""

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

        Raises NotReplicated when too few replicas have it.
        num_tokens: prompt, and output at most, for its tenant's rate. key: name of the API key that
        asks; key_limits: its requests and tokens in a minute, and how many at once. webhook and
        metadata are in the body too; here they are for an end before it is routed.
        """
        keys = [self.keys.requests(sla), self.keys.job(request_id)]
        more = {"metadata": json.dumps(metadata or {}, ensure_ascii=False)}
        pairs = flat(more | webhook_fields(webhook))
        asker = (*self.rates, num_tokens, key, *key_limits)
        with self.replicated() as client:
            told = self.run("accept", keys, sla, tenant, body, *asker, *pairs, client=client)
            is_new, entry_id, status, retry_ms = told
            if is_new != 1:  # a write like the first one's, for which WAIT would not wait
                client.publish(self.keys.again, b"")
        return Accepted(is_new == 1, entry_id.decode(), status.decode(), retry_ms)

    def route_all(self, routings: Sequence[Routing]) -> list[str | RateLimited]:
        """Hand admitted requests from their streams to queues of pools, each wholly or not at all.

        Gives of each "routed", "waits" (for its session), "duplicate" (the id is known; the entry
        is gone) or "not-mine" (another router did it). RateLimited: the entry is where it was. What
        came by a stream is charged to its tenant's rate in the same step.
        """
        told: list[Any] = []
        for begin in range(0, len(routings), ROUTED_PER_CALL):
            arguments: list[Value] = []
            for one in routings[begin : begin + ROUTED_PER_CALL]:
                arguments += self._routing(one)
            told += self.run("route", [self.keys.active], GROUP, *self.rates, *arguments)
        return [RateLimited(one) if isinstance(one, int) else text(one) for one in told]

    def route(self, **routing: Any) -> str:
        """One alone: the fields of a Routing. Raises RateLimited."""
        (outcome,) = self.route_all([Routing(**routing)])
        if isinstance(outcome, RateLimited):
            raise outcome
        return outcome

    def _routing(self, one: Routing) -> list[Value]:
        """As route.lua takes it."""
        request, plan = one.request, one.plan
        rank = self.table[request.sla].rank_ms(request.arrival_ms, request.deadline_ms)
        told = request_fields(request, one.reason) | planned_fields(plan) | {"rank": rank}
        if self.traces and "traceparent" not in told:
            told["traceparent"] = new_traceparent()
        fields = flat(told)
        most = len(request.token_ids) + request.params.max_tokens
        names = (one.sla, one.entry_id, request.id, one.pool, request.tenant, most)
        counted = f"{plan.kind or one.pool} {plan.why or 'unplanned'}"
        return [*names, counted, len(fields), *fields]

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

    def takes_turn(self, what: str, seconds: float) -> bool:
        """Whether this node does what one of its fleet is to do in so many seconds."""
        if not self.keys.node:
            return True
        key = self.keys.turn(what)
        return bool(self.redis.set(key, self.keys.node, px=int(1000 * seconds), nx=True))

    def passes_turn(self, what: str) -> None:
        """This node could do nothing of it: another one may try soon."""
        self.redis.pexpire(self.keys.turn(what), PASSED_MS)

    def reap(self, pool: str, *, at_most: int = 64) -> list[str]:
        """Put back what workers hold that have been silent for lease_s."""
        return texts(self.run("reap", [self.keys.wip(pool)], pool, self.max_attempts, at_most))

    def expire_late(self) -> list[str]:
        """End what waits in a queue or for its session, and whose deadline has passed; the ids."""
        return texts(self.run("expire_late", [self.keys.deadlines]))

    # --- sessions, by their full ids ---

    def session_note(
        self,
        session: str,
        *,
        fence: int | None = None,
        log: bytes | None = None,
        **fields: str | int,
    ) -> bool:
        """Say something of a session: writing, tokens, generation, committed, used_ms, home, pool.

        fence  of a commit: False, and nothing is said, when a later owner took the session over, or
               it was deleted. Claims to come have higher ones
        log    what the session's next owner needs without its files; b"": what is there goes
        """
        keys = [self.keys.session(session), self.keys.session_log(session)]
        told = (-1 if fence is None else fence, "" if log is None else "1", log or b"")
        return bool(self.run("session_note", keys, session, *told, *flat(fields)) == 1)

    def session_forget(self, session: str, *, fence: int | None = None) -> bool:
        """Its files are deleted on purpose: a later request of that id begins a new one.

        Who holds it, and who waits for it, stays. What earlier owners have of it is void.

        fence  of what is deleted; a later commit, of another node: False, and nothing is done
        """
        keys = [self.keys.session(session), self.keys.session_log(session)]
        only = -1 if fence is None else fence
        return bool(self.run("session_forget", keys, session, only, *OF_FILES) == 1)

    def move(
        self, request_id: str, pool: str, reason: str = "", *, of_node: str | None = None
    ) -> str:
        """Have another pool go on with a request. reason: why, for a person who looks at the job.

        pool: gpu or cpu alone means the one of the node where the request is. of_node: nothing is
        done unless it waits in a queue of that node

        Gives "moving" (its pool is told: `move ID POOL`), "moved" (it waited, or is there), "ended"
        or "unknown" (also of one that no router has seen). Raises ValueError for no pool, and for
        one of a node that nobody has heard.
        """
        if processor_of(pool) not in PROCESSORS:
            raise ValueError(f"pool: must be one of {', '.join(PROCESSORS)}, got {pool!r}")
        node, is_ours = node_of(pool), pool in self.keys.own_pools
        if node and not is_ours and self.redis.zscore(self.keys.nodes, node) is None:
            raise ValueError(f"pool: there is no node {node!r}")
        keys = [self.keys.job(request_id), self.keys.control]
        only = "" if of_node is None else f"{MARK}{of_node}"
        return text(self.run("move", keys, request_id, pool, reason, only))


def is_full(error: Exception) -> bool:
    """Whether the store refuses writes, for its memory is full or its disk (MISCONF)."""
    return isinstance(error, OutOfMemoryError) or says(error, "MISCONF")


def is_busy(error: Exception) -> bool:
    """Whether the store answers nobody just now: somebody's script runs too long in it."""
    return says(error, "BUSY")


def says(error: Exception, word: str) -> bool:
    """Whether a reply begins with that word, also one of a pipeline, which tells whose it is."""
    return str(error).rpartition(" caused error: ")[2].startswith(f"{word} ")
