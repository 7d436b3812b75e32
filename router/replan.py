"""What has been placed is placed anew when something happened, one rule each:

    a pool was lost          what waited for it goes to another one
    a queue waits            what it keeps waiting goes to a pool that begins it sooner
    a promise is at risk     what runs goes to the pool that keeps it
    the fast pool is idle    what runs elsewhere goes there, if that saves more than the move costs
    the fast pool is short   of places or memory: what runs there and is less urgent than what waits
                             goes to another pool that keeps its promise

Pure: the router calls it again and again with what it sees, and carries out what it says
(workers/lua/move.lua). Few moves at a time, so that a turn stays short and the next ones are judged
by what the first ones did; and no request twice within MOVED_LATELY_MS.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from router.balance import cost_of
from router.burden import has_room, keeps_pace, pressure
from router.forecast import forecast, rank_of
from router.placement import ALL, SAFE, Switches, shown_ms
from router.pools import PoolView, Wanted
from router.ways import idle_ms, strain
from workers.sla import SlaTable

LOST_AT_ONCE: Final = 64  # requests that leave the queue of a lost pool
QUEUED_AT_ONCE: Final = 4
RUNNING_AT_ONCE: Final = 2
MOVED_LATELY_MS: Final = 10_000
IDLE: Final = 0.4  # of a pool: so far others' running requests are asked to come
WAIT_WORTH_MS: Final = 1_000  # by so much sooner another pool must begin it
MOVE_WORTH_MS: Final = 3_000  # so much must a move of what runs save, beyond its own time


@dataclass(frozen=True, slots=True)
class Job:
    """A request that is in a pool.

    wanted     with the class that it has now, and the output tokens that it has
    pool       whose queue it is in, or where it runs
    running    claimed; False: it waits in the queue
    moved_ms   Unix time at which it last changed its pool; 0: never
    """

    wanted: Wanted
    pool: str
    running: bool = False
    moved_ms: int = 0


@dataclass(frozen=True, slots=True)
class Move:
    """Another pool is to go on with a request."""

    request_id: str
    to_pool: str
    reason: str


def replan(
    pools: Sequence[PoolView],
    jobs: Sequence[Job],
    table: SlaTable,
    now_ms: int,
    switches: Switches = ALL,
) -> list[Move]:
    """The moves that are worth it now, the most urgent first.

    pools  each pool once; their queues hold the waiting ones of jobs, and may hold more
    jobs   queued and running ones that may be moved; need not be all
    """
    ordered = sorted(jobs, key=lambda job: rank_of(job.wanted, table))
    moves = from_lost(pools, ordered, table)[:LOST_AT_ONCE]
    if moves or not switches.routing:
        return moves
    if any(pool.cost is None for pool in pools if pool.is_ready):
        return []
    node = Node({pool.name: pool for pool in pools if pool.is_ready}, table, now_ms, switches)
    if len(node.pools) < 2:
        return []
    rested = [job for job in ordered if now_ms - job.moved_ms >= MOVED_LATELY_MS]
    moves += node.sooner([job for job in rested if not job.running])
    if switches.promotion and switches.tiers:
        moves += node.running([job for job in rested if job.running and job.wanted.output_tokens])
    return moves


def from_lost(pools: Sequence[PoolView], jobs: Sequence[Job], table: SlaTable) -> list[Move]:
    """What waits for a pool that is not ready, while another one could run it."""
    lost = {pool.name: pool.state for pool in pools if not pool.is_ready}
    moves = []
    for job in jobs:
        fits = [p for p in pools if p.is_ready and p.holds(job.wanted.num_tokens)]
        if job.running or job.pool not in lost or not fits:
            continue
        best = min(fits, key=lambda pool: len(pool.queue) + pool.running)
        if all(pool.cost is not None for pool in fits):
            best = min(fits, key=lambda pool: forecast(job.wanted, pool, table).end_ms)
        reason = f"{best.name}: {job.pool} was to run it and is {lost[job.pool]}"
        moves.append(Move(job.wanted.request_id, best.name, reason))
    return moves


class Node:
    """The ready pools, as the moves so far leave them. All of them report their cost."""

    def __init__(
        self, pools: dict[str, PoolView], table: SlaTable, now_ms: int, switches: Switches
    ) -> None:
        self.pools, self.table, self.now_ms = pools, table, now_ms
        self.displaces = switches.preemption

    def move(self, job: Job, to: PoolView, reason: str) -> Move:
        """Decided: what comes after sees it there."""
        source, wanted = self.pools[job.pool], job.wanted
        if job.running:
            left = {**source.by_class, wanted.sla: max(0, source.by_class.get(wanted.sla, 1) - 1)}
            freed = source.free_blocks + wanted.blocks
            decoding, running = max(0, source.decoding - 1), max(0, source.running - 1)
            self.pools[source.name] = replace(
                source, by_class=left, free_blocks=freed, decoding=decoding, running=running
            )
        else:
            queue = tuple(q for q in source.queue if q.request_id != wanted.request_id)
            self.pools[source.name] = replace(source, queue=queue)
        self.pools[to.name] = replace(to, queue=(*to.queue, wanted))
        return Move(wanted.request_id, to.name, f"{to.name}: {reason}")

    def others(self, job: Job) -> list[PoolView]:
        """Pools that have room for it now, and keep the pace of those that run there."""
        wanted, table = job.wanted, self.table
        return [
            pool
            for pool in self.pools.values()
            if pool.name != job.pool
            and pool.holds(wanted.num_tokens)
            and has_room(wanted, pool, table, displaces=self.displaces)
            and keeps_pace(wanted, pool, table)
        ]

    def sooner(self, jobs: Sequence[Job]) -> list[Move]:
        """Of what waits in queues: what another pool begins sooner and in time."""
        moves: list[Move] = []
        for job in jobs:
            if len(moves) >= QUEUED_AT_ONCE or job.pool not in self.pools:
                continue
            for other in self.others(job):
                here = forecast(job.wanted, self.pools[job.pool], self.table)
                there = forecast(job.wanted, other, self.table)
                saved_ms = here.ttft_ms - there.ttft_ms
                strained = strain(job.wanted, there, self.table, self.now_ms)
                if saved_ms > WAIT_WORTH_MS and strained <= SAFE:
                    reason = f"begins it {shown_ms(saved_ms)} sooner than {job.pool}"
                    moves.append(self.move(job, other, reason))
                    break
        return moves

    def running(self, jobs: Sequence[Job]) -> list[Move]:
        """Of what runs: a few that are better off, or that others need to be gone."""
        moves: list[Move] = []
        for job in jobs:
            if len(moves) >= RUNNING_AT_ONCE or job.pool not in self.pools:
                continue
            for other in self.others(job):
                reason = self.why_go(job, other)
                if reason is not None:
                    moves.append(self.move(job, other, reason))
                    break
        return moves

    def why_go(self, job: Job, other: PoolView) -> str | None:
        """Why a running request should go on in the other pool; None: it should not."""
        source, wanted = self.pools[job.pool], job.wanted
        left = source.output_of(wanted) - 1
        pace_ms = cost_of(source).step_ms(max(1, source.decoding), source.context_tokens)
        move_ms = cost_of(source).write_ms(wanted.num_tokens)
        there = forecast(wanted, other, self.table)
        saved_ms = left * pace_ms - move_ms - there.end_ms
        if saved_ms > MOVE_WORTH_MS:
            if self.is_late(wanted, left * pace_ms):
                return f"its promise is at risk in {source.name}"
            if pressure(wanted, other, self.table) <= IDLE:
                return f"has room, and ends it {shown_ms(saved_ms)} sooner"
        may_leave = self.is_short(source, wanted) and self.may_leave(wanted, source, other)
        if may_leave and strain(wanted, there, self.table, self.now_ms) <= SAFE:
            return f"keeps its promise, and more urgent work waits for {source.name}"
        return None

    def is_late(self, wanted: Wanted, left_ms: float) -> bool:
        """Whether its end, promised by class or request, would be too late where it is."""
        promised = self.table[wanted.sla].deadline_ms
        ends = [] if promised is None else [wanted.arrival_ms + promised]
        if wanted.deadline_ms is not None:
            ends.append(wanted.deadline_ms)
        return bool(ends) and self.now_ms + left_ms > min(ends)

    def is_short(self, pool: PoolView, wanted: Wanted) -> bool:
        """Whether something more urgent than this waits for a place or for memory there."""
        waits = [q for q in pool.queue if self.table.more_urgent(q.sla, wanted.sla)]
        full = pool.running >= pool.places or pool.waiting_blocks > pool.free_blocks
        return bool(waits) and full

    def may_leave(self, wanted: Wanted, source: PoolView, other: PoolView) -> bool:
        """Only from the pool that is faster for it: the slower one is where it would go."""
        return idle_ms(wanted, source) < idle_ms(wanted, other)
