"""The fleet: one store's streams, who waits for a message, where sessions are at home, who died.

Of the routers that wait for a message of its class, the one that has waited longest gets it: so
Redis serves consumers that block. What no router has room for stays in its stream.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from router.simulator.clock import FOREVER, Clock
from router.simulator.fleet.homes import SimHomes
from router.simulator.fleet.node import FleetNode
from router.simulator.hardware import PoolHardware
from router.simulator.job import Job
from router.simulator.pool import SimPool
from router.simulator.steps import EngineKind
from router.simulator.systems import BatchEngine
from router.simulator.workload import Wish, next_turn
from router.suiting import PATIENCE_S
from workers.fleet.names import node_of, pool_name
from workers.sla import SlaTable

LEASE_MS: Final = 15_000.0  # the setting lease_s
ADOPT_MS: Final = 1000.0  # router/adopting.py
ADOPT_MOST: Final = 64


class Fleet:
    """on_end is told of each job that has ended, and of the node where it did."""

    def __init__(
        self,
        hardware: Sequence[Mapping[str, PoolHardware]],
        table: SlaTable,
        clock: Clock,
        on_end: Callable[[Job, FleetNode], None] = lambda job, node: None,
    ) -> None:
        """hardware: of each node, its processors by name"""
        self.table, self.clock, self.on_end = table, clock, on_end
        self.streams: dict[str, deque[Job]] = {name: deque() for name in table.names}
        self.homes: dict[str, tuple[str, int]] = {}  # session: its last pool, tokens in its files
        self.homes_of_fleet = SimHomes(table, lambda pool: self.node_of(pool).views())
        self.waiting: OrderedDict[FleetNode, frozenset[str]] = OrderedDict()
        self.closes_ms = FOREVER
        self.num_arrived = self.num_ended = 0
        self.adopted_ms: list[float] = []  # of each request that was taken over, since the death
        self.nodes = [self._made(f"n{number}", one) for number, one in enumerate(hardware)]
        self.by_name = {node.name: node for node in self.nodes}
        self._adopters = 0
        for node in self.nodes:
            node.on_end = partial(self._over, node)
            clock.at(0.0, node.route)

    def _made(self, name: str, hardware: Mapping[str, PoolHardware]) -> FleetNode:
        pools = {
            pool_name(processor, name): SimPool(
                pool_name(processor, name), one, self.clock, self.table, EngineKind()
            )
            for processor, one in hardware.items()
        }
        return FleetNode(name, self, pools, BatchEngine(self.table), self.table, self.clock)

    def node_of(self, pool: str) -> FleetNode:
        return self.by_name[node_of(pool)]

    def home_of(self, job: Job) -> str | None:
        """The pool of its session's last request; None: there is none."""
        found = self.homes.get(job.wish.session or "")
        return None if found is None else found[0]

    # --- requests ---

    def expect(self, wishes: Sequence[Wish]) -> None:
        for wish in wishes:
            self.clock.at(wish.arrival_ms, partial(self.arrive, wish))

    def arrive(self, wish: Wish) -> None:
        """Onto the stream of its class, or to whoever waits for it."""
        job = Job(wish, wish.sla)
        job.known = job.computed = job.in_files = min(wish.history, wish.prompt - 1)
        self.num_arrived += 1
        for node, classes in self.waiting.items():
            if job.sla in classes:
                del self.waiting[node]
                return node.hear(job)
        self.streams[job.sla].append(job)
        return self.clock.after(1000 * PATIENCE_S, self._look)

    def _look(self) -> None:
        """What others are late with is for whoever waits for something else."""
        if any(self.streams.values()):
            waiting, self.waiting = list(self.waiting), OrderedDict()
            for node in waiting:
                node.route()

    def age_s(self, sla: str) -> float:
        """Since the oldest message of a class came that nobody has read."""
        line = self.streams[sla]
        return (self.clock.now_ms - line[0].wish.arrival_ms) / 1000 if line else 0.0

    def share_of(self, node: FleetNode) -> float:
        """A node's part of the speed of all that live."""
        return node.speed / sum(one.speed for one in self.nodes if one.died_ms is None)

    def await_message(self, node: FleetNode, classes: frozenset[str]) -> None:
        """Behind all that wait already."""
        if node not in self.waiting:
            self.waiting[node] = classes

    def ended(self, job: Job, node: FleetNode) -> None:
        """Finished; its conversation goes on, and is at home there."""
        wish = job.wish
        if wish.session is None:
            return
        self.homes[wish.session] = (job.pool, job.computed)
        following = next_turn(wish, self.clock.now_ms)
        if following is not None and following.arrival_ms <= self.closes_ms:
            self.clock.at(following.arrival_ms, partial(self.arrive, following))

    def _over(self, node: FleetNode, job: Job) -> None:
        self.num_ended += 1
        self.on_end(job, node)

    # --- deaths ---

    def kill(self, name: str) -> None:
        """A machine loses power: after a lease the others see to what it had."""
        node = self.by_name[name]
        node.die()
        self.waiting.pop(node, None)
        self.clock.after(LEASE_MS, partial(self._adopt, node))

    def _adopt(self, dead: FleetNode) -> None:
        """One living node after the other takes what it has room for, once a second."""
        living = [node for node in self.nodes if node.died_ms is None]
        left = dead.left_behind()
        if not left or not living:
            return
        node = living[self._adopters % len(living)]
        self._adopters += 1
        node._views = None
        for job in left[:ADOPT_MOST]:
            if node.adopt(job, dead) and dead.died_ms is not None:
                self.adopted_ms.append(self.clock.now_ms - dead.died_ms)
        node.turn()
        self.clock.after(ADOPT_MS, partial(self._adopt, dead))
