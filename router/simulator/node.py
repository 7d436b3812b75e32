"""A node on virtual time: streams, queues, pools. Turns, placement, replanning are the real ones.

    arrive ──door──► stream of its class ──turns──► place ──► queue of a pool ──► SimPool
                │                                    │  ▲                          │
                refuse                            wait  └─ asked again             ├─ then: move
                                                                                   └─ replan: moves

What the router knows of the pools is what they last reported, REPORT_MS old at most, and what lies
in its queues now; as in a node. A conversation's next request comes when the one before has ended.
"""

from bisect import insort
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, Protocol

from router.placement import EMPTY, Plan
from router.pools import PoolView, Wanted, views_of
from router.reading import room_of
from router.replan import Job as Placed
from router.replan import Move
from router.sight import seen, with_queued
from router.simulator.clock import FOREVER, Clock
from router.simulator.job import CLAIMED, MOVING, REFUSED, WAITING, Job
from router.simulator.pool import SimPool
from router.simulator.workload import Wish, next_turn
from router.turns import Turns
from workers.sla import SlaTable
from workers.wire import PoolLoad

REPORT_MS: Final = 1000.0  # workers/queue/bookkeeper.py
REPLAN_MS: Final = 1000.0
FULL_PAUSE_MS: Final = 50.0  # router/loop.py


class Policy(Protocol):
    """What decides: batchEngine with some of its mechanisms, or a baseline."""

    def place(
        self,
        wanted: Wanted,
        home: str | None,
        pools: Sequence[PoolView],
        now_ms: int,
        backlog: Mapping[str, int],
    ) -> Plan: ...

    def replan(
        self, pools: Sequence[PoolView], jobs: Sequence[Placed], now_ms: int
    ) -> list[Move]: ...


class Node:
    """on_end is told of each job that has ended, whichever way.

    has_door: what cannot be kept is refused when it arrives
    """

    def __init__(
        self,
        pools: dict[str, SimPool],
        policy: Policy,
        table: SlaTable,
        clock: Clock,
        *,
        has_door: bool = True,
    ) -> None:
        self.pools, self.policy, self.table, self.clock = pools, policy, table, clock
        self.has_door = has_door
        self.on_end: Callable[[Job], None] = lambda job: None
        self.turns = Turns(table)
        self.streams: dict[str, deque[Job]] = {name: deque() for name in table.names}
        self.queues: dict[str, list[Job]] = {name: [] for name in pools}
        self.held: list[Job] = []
        self.jobs: dict[str, Job] = {}  # all that have not ended
        self.homes: dict[str, tuple[str, int]] = {}  # session: its last pool, tokens in its files
        self.let_in: set[str] = set()  # ids that the door takes, whatever is predicted
        self.closes_ms = FOREVER  # conversations ask nothing after that
        self.num_accepted = self.num_ended = 0
        self._views: tuple[PoolView, ...] | None = None
        self._seen_by_held: tuple[PoolView, ...] = ()
        self._loads: list[PoolLoad] = []
        self._loads_at = float("-inf")
        self._is_turning = self._is_asked = False
        self._turned_ms = float("-inf")
        for pool in pools.values():
            pool.on_first, pool.on_end = self._first_token, self._ended
        self._is_replanning = False

    @property
    def has_files(self) -> bool:
        return all(pool.has_files for pool in self.pools.values())

    # --- requests come ---

    def expect(self, wishes: Sequence[Wish]) -> None:
        for wish in wishes:
            self.clock.at(wish.arrival_ms, partial(self.arrive, wish))

    def arrive(self, wish: Wish) -> None:
        """At the door: refused, or on the stream of its class."""
        job = Job(wish, wish.sla)
        history = min(wish.history, wish.prompt - 1)
        job.known = job.computed = job.in_files = history
        self.num_accepted += 1
        self.jobs[wish.id] = job
        if not self._is_replanning:
            self._is_replanning = True
            self.clock.after(REPLAN_MS, self._replan)
        self._views = None
        if self.has_door and wish.id not in self.let_in:
            plan = self.policy.place(
                self.wanted(job), self._home(job), self.views(), self._now(), self._backlog()
            )
            if plan.kind == "refuse":
                self._refuse(job, plan)
                return
        self.streams[wish.sla].append(job)
        self.turn()

    # --- the router ---

    def turn(self) -> None:
        """As router/loop.py: what is read, what is held, what the pools claim.

        While something is held the router pauses between two turns; pools claim when they can.
        """
        if self._is_turning:
            return
        self._is_turning = True
        if self.held and self.clock.now_ms < self._turned_ms + FULL_PAUSE_MS:
            self._turn_later()
        else:
            self._turned_ms = self.clock.now_ms
            self._place_all()
        for name in self.pools:
            self._claim(name)
        self._is_turning = False

    def _turn_later(self) -> None:
        if not self._is_asked:
            self._is_asked = True
            self.clock.at(self._turned_ms + FULL_PAUSE_MS, self._turn_now)

    def _turn_now(self) -> None:
        self._is_asked = False
        self.turn()

    def _place_all(self) -> None:
        """Those that wait here take turns, unless nothing has changed since they last did."""
        self._views = None
        views = self.views()
        if not self._read() and views == self._seen_by_held:
            return
        self._seen_by_held = views
        lines: dict[str, list[Job]] = {sla: [] for sla in self.table.names}
        for job in sorted(self.held, key=self._rank):
            lines[job.sla].append(job)
        self.held = []
        tried = {sla: iter(line) for sla, line in lines.items()}
        for sla in self.turns.order({sla: len(line) for sla, line in lines.items()}):
            if self._place(next(tried[sla])):
                self.turns.served(sla)

    def _read(self) -> bool:
        """What some queue has room for.   False: nothing new is held."""
        waiting = self._backlog()
        if not any(waiting.values()):
            return False
        held = Counter(job.sla for job in self.held)
        room = room_of(waiting, held, self.views(), self.table)
        for sla, count in room.items():
            self.held += [self.streams[sla].popleft() for _ in range(count)]
        return any(room.values())

    def _place(self, job: Job) -> bool:
        """False: it is held."""
        wanted = self.wanted(job)
        plan = self.policy.place(wanted, self._home(job), self.views(), self._now(), EMPTY)
        if self._follow(job, plan):
            queued = replace(wanted, then=plan.then)
            self._views = tuple(with_queued(view, queued, plan.pool) for view in self.views())
        return plan.kind != "wait"

    def _follow(self, job: Job, plan: Plan) -> bool:
        """Whether the plan puts it into a queue, and not on hold or out."""
        job.plan = plan
        if plan.kind == "wait":
            self.held.append(job)
        elif plan.kind == "refuse":
            self._refuse(job, plan)
        else:
            job.then, job.pool = plan.then, plan.pool
            job.reasons.append(plan.reason)
            self._enqueue(job)
            return True
        return False

    def _enqueue(self, job: Job) -> None:
        """In order of rank."""
        insort(self.queues[job.pool], job, key=self._rank)

    def _rank(self, job: Job) -> int:
        return self.table[job.sla].rank_ms(int(job.wish.arrival_ms))

    def _claim(self, name: str) -> None:
        """In the order of the queue; who is not taken is passed by those who are more urgent."""
        pool, left = self.pools[name], []
        for job in self.queues[name]:
            if pool.would_take(job):
                pool.take(job)
            else:
                left.append(job)
        self.queues[name] = left

    def _refuse(self, job: Job, plan: Plan) -> None:
        job.plan = plan
        job.state, job.end_ms, job.retry_after_ms = REFUSED, self.clock.now_ms, plan.retry_ms
        self._over(job)

    def _home(self, job: Job) -> str | None:
        found = self.homes.get(job.wish.session or "")
        return None if found is None else found[0]

    def _now(self) -> int:
        return int(self.clock.now_ms)

    def _backlog(self) -> dict[str, int]:
        """What waits outside of the pools, by class."""
        held = Counter(job.sla for job in self.held)
        return {sla: len(jobs) + held[sla] for sla, jobs in self.streams.items()}

    # --- what the router sees ---

    def wanted(self, job: Job) -> Wanted:
        wish = job.wish
        return Wanted(
            request_id=wish.id,
            sla=job.sla,
            arrival_ms=int(wish.arrival_ms),
            prompt_tokens=wish.prompt,
            max_tokens=wish.max_tokens,
            kept_tokens=job.computed,
            output_tokens=job.made,
            then=job.then,
        )

    def views(self) -> tuple[PoolView, ...]:
        """As router/sight.py: reports REPORT_MS old at most, queues and claims as they are."""
        if self._views is None:
            if self.clock.now_ms - self._loads_at >= REPORT_MS:
                self._loads = [pool.load() for pool in self.pools.values()]
                self._loads_at = self.clock.now_ms
            queues = {name: map(self.wanted, jobs) for name, jobs in self.queues.items()}
            placed = [self._placed(job) for job in self.jobs.values() if job.then is not None]
            self._views = tuple(
                seen(view, len(self.pools[view.name].claimed), placed, self._facts())
                for view in views_of(self._loads, queues, "", pools=tuple(self.pools))
            )
        return self._views

    def _facts(self) -> Iterator[Wanted]:
        """Of whatever is in a pool."""
        return (self.wanted(job) for job in self.jobs.values() if job.pool)

    # --- pools say something ---

    def _first_token(self, job: Job) -> None:
        """Its prefill is done: another pool may be meant to decode it."""
        then = job.then
        if then is not None and then != job.pool and not self.pools[then].is_lost:
            self.move(job, then, "decodes there")

    def _ended(self, job: Job) -> None:
        wish = job.wish
        if wish.session is not None:
            self.homes[wish.session] = (job.pool, job.computed)
            following = next_turn(wish, self.clock.now_ms)
            if following is not None and following.arrival_ms <= self.closes_ms:
                self.clock.at(following.arrival_ms, partial(self.arrive, following))
        self._over(job)
        self.clock.after(0.0, self.turn)

    def _over(self, job: Job) -> None:
        del self.jobs[job.id]
        self.num_ended += 1
        self.on_end(job)

    # --- moves ---

    def move(self, job: Job, to_pool: str, reason: str) -> None:
        """It goes on in another pool: at once from a queue, else between two steps."""
        job.reasons.append(reason)
        job.moved_ms = self.clock.now_ms
        job.moves += 1
        if job.state == WAITING and job in self.queues.get(job.pool, ()):
            self.queues[job.pool].remove(job)
            job.pool = to_pool
            self._enqueue(job)
            self._claim(to_pool)
        elif job.state == CLAIMED:
            job.then = None
            self.pools[job.pool].leave(job, partial(self._left, job, to_pool))

    def _left(self, job: Job, to_pool: str) -> None:
        """It goes to the front of the other queue."""
        job.state, job.pool = WAITING, to_pool
        self.queues[to_pool].insert(0, job)
        self.clock.after(0.0, self.turn)

    def lose(self, name: str) -> None:
        """A pool dies. What it had goes back to its queue (reap.lua), and replan looks after it."""
        jobs = self.pools[name].lose()
        for job in jobs:
            job.state = WAITING
        self.queues[name] = sorted([*jobs, *self.queues[name]], key=self._rank)
        self._loads_at, self._views = float("-inf"), None

    def _replan(self) -> None:
        self._views = None
        placed = [
            self._placed(job) for job in self.jobs.values() if job.pool and job.state != MOVING
        ]
        for move in self.policy.replan(self.views(), placed, self._now()):
            job = self.jobs.get(move.request_id)
            if job is not None and move.to_pool != job.pool:
                self.move(job, move.to_pool, move.reason)
        self.turn()
        self._is_replanning = bool(self.jobs)
        if self.jobs:
            self.clock.after(REPLAN_MS, self._replan)

    def _placed(self, job: Job) -> Placed:
        is_running = job.state == CLAIMED
        return Placed(self.wanted(job), job.pool, is_running, int(job.moved_ms))
