"""One node of a fleet: its router reads what its own pools have room for; the rest is node.py.

    stream ──one of those that wait is woken──► read ──► place: here, or home ──► queue of a pool
                     ▲                                     │
                     └── waits again while there is room   └ no room: held, asked again soon

As router/loop.py: a router waits for messages of the classes that it is quick enough for, as long
as there is room (suiting.py); of what waits in the streams it reads its share. One that is full
looks again each FULL_PAUSE_MS; here only when something has changed since: a pool has claimed or
ended something, or has reported.
"""

from collections import Counter, deque
from dataclasses import replace
from typing import Final, Protocol

from router.membership import speed_of
from router.placement import EMPTY, Plan
from router.pools import PoolView
from router.pressure import of_share
from router.reading import room_of
from router.simulator.clock import FOREVER, Clock
from router.simulator.fleet.homes import SimHomes
from router.simulator.job import WAITING, Job
from router.simulator.node import FULL_PAUSE_MS, REPLAN_MS, REPORT_MS, Node, Policy
from router.simulator.pool import SimPool
from router.suiting import Suits
from router.typical import Typical
from workers.sla import SlaTable

ROUTER_MS: Final = 2.0  # that a router takes for a message: tests/bench/RESULTS.md
SILENT_MS: Final = 5000.0  # until a dead pool's last report is gone (workers/worker_store.py)


class Around(Protocol):
    """What a node has of its fleet (fleet.py)."""

    streams: dict[str, deque[Job]]
    homes_of_fleet: SimHomes

    def home_of(self, job: Job) -> str | None: ...

    def share_of(self, node: "FleetNode") -> float: ...

    def age_s(self, sla: str) -> float: ...

    def node_of(self, pool: str) -> "FleetNode": ...

    def await_message(self, node: "FleetNode", classes: frozenset[str]) -> None: ...

    def ended(self, job: Job, node: "FleetNode") -> None: ...


class FleetNode(Node):
    """speed: typical requests a second that it can do when nothing else runs"""

    def __init__(
        self,
        name: str,
        fleet: Around,
        pools: dict[str, SimPool],
        policy: Policy,
        table: SlaTable,
        clock: Clock,
    ) -> None:
        super().__init__(pools, policy, table, clock, has_door=False)
        self.name, self.fleet = name, fleet
        self.streams = fleet.streams
        self.died_ms: float | None = None
        self.speed = speed_of(self.views())
        self.typical = Typical(table.names)
        self.suits = Suits(table, self.typical.next_one, fleet.age_s, lambda: clock.now_ms / 1000)
        self._is_full = False
        self._due_ms = FOREVER  # of the router's next turn

    # --- the router ---

    def turn(self) -> None:
        """Pools claim what lies in their queues; the router has turns of its own."""
        for name in self.pools:
            self._claim(name)
        if self._is_full:
            self.route_after(FULL_PAUSE_MS)

    def route_after(self, ms: float) -> None:
        """At the latest."""
        due_ms = self.clock.now_ms + ms
        if due_ms < self._due_ms:
            self._due_ms = due_ms
            self.clock.at(due_ms, self._route_if_due)

    def _route_if_due(self) -> None:
        if self.clock.now_ms >= self._due_ms:
            self._due_ms = FOREVER
            self.route()

    def route(self) -> None:
        """A turn of the router, and when the next one is."""
        if self.died_ms is not None:
            return
        self._is_full = False
        self._place_all()
        self.turn()
        if any(self.room().values()):
            self.route_after(ROUTER_MS)
        elif (classes := self.classes_to_wait_for()) and not self.held:
            self.fleet.await_message(self, classes)
        else:
            self._is_full = True
            self.route_after(REPORT_MS)

    def room(self) -> dict[str, int]:
        """How many of each class to read now: of what waits its share, as far as that suits."""
        held = Counter(job.sla for job in self.held)
        waiting = {sla: len(line) + held[sla] for sla, line in self.streams.items()}
        if not any(self.streams.values()):
            return {}
        suit = self.suits.all(self.views(), waiting)
        mine = of_share(waiting, self.fleet.share_of(self))
        wanted = {sla: mine[sla] if sla in suit else 0 for sla in waiting}
        room = room_of(wanted, held, self.views(), self.table)
        return {sla: min(count, len(self.streams[sla])) for sla, count in room.items()}

    def classes_to_wait_for(self) -> frozenset[str]:
        held = Counter(job.sla for job in self.held)
        one_more = {sla: held[sla] + 1 for sla in self.suits.quick(self.views())}
        room = room_of(one_more, held, self.views(), self.table)
        return frozenset(sla for sla, count in room.items() if count)

    def hear(self, job: Job) -> None:
        """It was waiting, and this message is its own."""
        self.own(job)
        self.held.append(job)
        self._seen_by_held = ()
        self.route_after(ROUTER_MS)

    def own(self, job: Job) -> None:
        """A request that is this node's to place, or to run, from now on."""
        if job.read_ms is None:
            job.read_ms = self.clock.now_ms
            wish = job.wish
            self.typical.saw(job.sla, wish.prompt - wish.history, wish.max_tokens)
        self.jobs[job.id] = job
        self.num_accepted += 1
        self._views = None
        if not self._is_replanning:
            self._is_replanning = True
            self.clock.after(REPLAN_MS, self._replan)

    def _read(self) -> bool:
        room = self.room()
        for sla, count in room.items():
            for _ in range(count):
                job = self.streams[sla].popleft()
                self.own(job)
                self.held.append(job)
        return any(room.values())

    # --- here, or home ---

    def _place(self, job: Job) -> bool:
        home = self.fleet.home_of(job)
        if home is None or home in self.pools:
            return super()._place(job)
        wanted = self.wanted(job)
        anew = replace(wanted, kept_tokens=0)
        here = self.policy.place(anew, None, self.views(), self._now(), EMPTY)
        plan = self.fleet.homes_of_fleet.plan(wanted, home, here, self._now())
        if plan.pool in self.pools:
            job.computed = job.in_files = 0  # what its session has computed is not here
        if plan.kind in ("wait", "refuse") or plan.pool in self.pools:
            return self._follow_here(job, plan)
        self.give(job, plan, self.fleet.node_of(plan.pool))
        return True

    def _follow_here(self, job: Job, plan: Plan) -> bool:
        """As Node._place, with a plan that is made already."""
        if self._follow(job, plan):
            self._views = None
        return plan.kind != "wait"

    def give(self, job: Job, plan: Plan, other: "FleetNode") -> None:
        """Into another node's queue."""
        del self.jobs[job.id]
        self.num_accepted -= 1
        other.own(job)
        other._follow_here(job, plan)
        self.clock.after(0.0, other.turn)

    def _home(self, job: Job) -> str | None:
        return self.fleet.home_of(job)

    def views(self) -> tuple[PoolView, ...]:
        """Of a dead node the last report, as long as that stands."""
        if self.died_ms is not None and self.clock.now_ms - self.died_ms >= SILENT_MS:
            return tuple(PoolView(name, "not reporting", places=0) for name in self.pools)
        return super().views()

    # --- its end ---

    def die(self) -> None:
        """All of it at once. What it held and ran stands in the store."""
        self.died_ms = self.clock.now_ms
        for name in self.pools:
            self.lose(name)
        there = {job.id for job in self.left_behind()}
        for job in self.jobs.values():
            if job.id not in there:  # between two pools
                job.state = WAITING
                self._enqueue(job)

    def left_behind(self) -> list[Job]:
        """What it had, by rank; nobody has its files."""
        jobs = [job for queue in self.queues.values() for job in queue]
        return sorted([*jobs, *self.held], key=self._rank)

    def adopt(self, job: Job, dead: "FleetNode") -> bool:
        """A dead node's request, if there is room here.   False: there is none"""
        anew = replace(dead.wanted(job), kept_tokens=0, then=None)
        plan = self.policy.place(anew, None, self.views(), self._now(), EMPTY)
        if plan.kind in ("wait", "refuse"):
            return False
        dead.forget(job)
        job.computed = job.in_files = 0
        job.then, job.state, job.moves = None, WAITING, job.moves + 1
        self.own(job)
        return self._follow_here(job, replace(plan, reason=f"taken over, {dead.name} is gone"))

    def forget(self, job: Job) -> None:
        """Somebody else has it."""
        del self.jobs[job.id]
        self.num_accepted -= 1
        for queue in self.queues.values():
            if job in queue:
                queue.remove(job)
        if job in self.held:
            self.held.remove(job)

    def _replan(self) -> None:
        """Of a node with one pool nothing can move."""
        if self.died_ms is None and len(self.pools) > 1:
            super()._replan()
        else:
            self._is_replanning = False

    def _left(self, job: Job, to_pool: str) -> None:
        if self.died_ms is None:
            super()._left(job, to_pool)

    def _ended(self, job: Job) -> None:
        self.fleet.ended(job, self)
        self._over(job)
        self.clock.after(0.0, self.turn)
