"""What the router sees of the pools: reports, queues, what runs. Each look is as old as it may be.

    reports of the pools    LOADS_AGE_S: they come once a second
    queues, claims          each turn: they are what fills and empties
    what is in the pools    JOBS_AGE_S: one by one, for plans to be made anew

Between two looks the router counts what it queued itself.
"""

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from router.largest import Largest
from router.pools import PoolView, Wanted, added, views_of
from router.replan import Job
from workers.fleet.names import pools_of
from workers.fleet.presence import longest
from workers.placed import Placed, placed
from workers.store import Store
from workers.wire import PoolLoad

LOADS_AGE_S: Final = 0.25
JOBS_AGE_S: Final = 1.0
LONGEST_AGE_S: Final = 2.0
QUEUE_LOOK: Final = 256  # of a queue, and of what runs in a pool


class Sight:
    """One router's view of a node. Everything but forget() may ask the store."""

    def __init__(self, store: Store, model: str, node: str | None = None) -> None:
        """node: None: the router's own"""
        self.store, self.model = store, model
        self.node = store.keys.node if node is None else node
        self.pools = pools_of(self.node)
        self.facts: dict[str, Wanted] = {}  # of whatever is in a pool, as far as it is known
        self.largest = Largest(model)
        self._loads: list[PoolLoad] = []
        self._jobs: list[Job] = []
        self._nameless: set[str] = set()  # in a queue, and nothing is known of them
        self._views: tuple[PoolView, ...] | None = None
        self._longest = 0
        self._loads_at = self._jobs_at = self._longest_at = float("-inf")

    def forget(self) -> None:
        """A turn begins: queues are to be looked at again."""
        self._views = None

    def loads(self) -> list[PoolLoad]:
        """What the pools said of themselves, LOADS_AGE_S ago at most."""
        now = time.monotonic()
        if now - self._loads_at > LOADS_AGE_S:
            self._loads, self._loads_at = self.store.loads(self.node), now
            self.largest.look(self._loads, now)
        return self._loads

    def longest_here(self) -> int | None:
        """Tokens of the longest sequence that a pool holds which was ready lately; None: none."""
        self.loads()
        return self.largest.tokens

    def longest(self) -> int | None:
        """The same of all nodes of a fleet."""
        here, now = self.longest_here(), time.monotonic()
        if not self.node or here is None:
            return here
        if now - self._longest_at > LONGEST_AGE_S:
            self._longest, self._longest_at = longest(self.store), now
        return max(here, self._longest)

    def is_loading(self) -> bool:
        """Whether a pool is about to be ready: how much it will hold is not known yet."""
        return any(load.state == "loading" for load in self.loads())

    def views(self) -> tuple[PoolView, ...]:
        """The pools with their queues, as they were when the turn began, and what it queued."""
        if self._views is None:
            self._views = self._look()
        return self._views

    def queued(self, wanted: Wanted, pool: str, then: str | None) -> None:
        """The router has just put this request into a queue; `then` is to decode it."""
        wanted = replace(wanted, then=then)
        self.facts[wanted.request_id] = wanted
        if self._views is not None:
            self._views = tuple(with_queued(view, wanted, pool) for view in self._views)

    def jobs(self, age_s: float = JOBS_AGE_S) -> list[Job]:
        """What is in the pools, one by one, age_s ago at most."""
        now = time.monotonic()
        if now - self._jobs_at > age_s:
            found = placed(self.store, QUEUE_LOOK, self.pools)
            self._jobs, self._jobs_at = [job_of(one) for one in found], now
            self.facts = {job.wanted.request_id: job.wanted for job in self._jobs}
        return self._jobs

    def movable(self) -> list[Job]:
        """The same, but what has been claimed since: whether that waits or runs is known later."""
        queued = {wanted.request_id for view in self.views() for wanted in view.queue}
        return [job for job in self.jobs() if job.running or job.wanted.request_id in queued]

    def _are_new(self, ids: Mapping[str, Iterable[str]]) -> bool:
        """Whether there are any that another router queued, or this one before it was restarted."""
        known = self.facts.keys() | self._nameless
        return any(i not in known for queue in ids.values() for i in queue)

    def _look(self) -> tuple[PoolView, ...]:
        keys = self.store.keys
        with self.store.redis.pipeline(transaction=False) as pipeline:
            for pool in self.pools:
                pipeline.lrange(keys.queue(pool), 0, QUEUE_LOOK - 1)
                pipeline.zcard(keys.wip(pool))
            found = pipeline.execute()
        ids = {pool: [i.decode() for i in found[2 * n]] for n, pool in enumerate(self.pools)}
        jobs = self.jobs(LOADS_AGE_S if self._are_new(ids) else JOBS_AGE_S)
        self._nameless = {i for queue in ids.values() for i in queue if i not in self.facts}
        queues = {
            pool: [self.facts[i] for i in ids[pool] if i in self.facts] for pool in self.pools
        }
        views = views_of(self.loads(), queues, self.model, self.largest.blocks, self.pools)
        claimed = {pool: found[2 * n + 1] for n, pool in enumerate(self.pools)}
        coming = [job for job in jobs if job.wanted.then not in (None, job.pool)]
        return tuple(seen(view, claimed[view.name], coming, self.facts.values()) for view in views)


def seen(view: PoolView, claimed: int, jobs: Iterable[Job], facts: Iterable[Wanted]) -> PoolView:
    """A view with what is newer than the pool's report.

    facts  of what is in pools. What was claimed since the report is taken for the like of those
           that have no token yet; it has no memory, as far as is known, and its prompt is to come
    """
    coming = tuple(job.wanted for job in jobs if job.wanted.then == view.name)
    fresh = max(0, claimed - view.running)
    begun = [wanted for wanted in facts if not wanted.output_tokens] if fresh else []
    if not begun:
        return replace(view, running=view.running + fresh, coming=coming)
    share = fresh / len(begun)
    classes = Counter(wanted.sla for wanted in begun)
    prompts = dict(view.prefill_by_class)
    for wanted in begun:
        prompts[wanted.sla] = prompts.get(wanted.sla, 0) + round(share * wanted.uncached)
    return replace(
        view,
        running=claimed,
        waiting_blocks=view.waiting_blocks + round(share * sum(w.blocks for w in begun)),
        prefill_tokens=view.prefill_tokens + round(share * sum(w.uncached for w in begun)),
        prefill_by_class=prompts,
        by_class=added((view.by_class, {sla: round(share * n) for sla, n in classes.items()})),
        coming=coming,
    )


def with_queued(view: PoolView, wanted: Wanted, pool: str) -> PoolView:
    """The view after a request went into the queue of `pool`."""
    if view.name == pool:
        return replace(view, queue=(*view.queue, wanted))
    return replace(view, coming=(*view.coming, wanted)) if view.name == wanted.then else view


def job_of(found: Placed) -> Job:
    """What is in a pool, as replan looks at it."""
    wanted = Wanted(
        request_id=found.request_id,
        sla=found.sla,
        arrival_ms=found.arrival_ms,
        prompt_tokens=max(1, found.prompt_tokens),
        max_tokens=max(1, found.max_tokens),
        deadline_ms=found.deadline_ms,
        kept_tokens=found.prompt_tokens + found.output_tokens if found.output_tokens else 0,
        output_tokens=found.output_tokens,
        then=found.then_pool,
    )
    return Job(wanted, found.pool, found.running, found.moved_ms)
