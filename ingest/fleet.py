"""The fleet as people look at it: each node with what it says of itself, its pools, their queues.

A node that is alone on its Redis is a fleet of one that has no name. As many round trips however
many nodes there are.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast

from workers.fleet.names import pools_of
from workers.fleet.presence import Node, NodeReport, nodes
from workers.store import Store
from workers.store_reading import pool_load
from workers.wire import KEEP_S, PoolLoad

HEARD_S: Final = 5.0  # a node says each second that it lives; so long it may be slow


@dataclass(frozen=True)
class SeenNode:
    """One node.

    report    what it said last, of a node that is alone nothing; silent_s: how long ago
    lease_s   silence after which others take over what it had
    queues    jobs that wait, by pool
    """

    report: NodeReport
    silent_s: float
    lease_s: float
    loads: tuple[PoolLoad, ...]
    queues: Mapping[str, int]

    @property
    def name(self) -> str:
        return self.report.node

    @property
    def state(self) -> str:
        """How it is, in one word.

        "ready", "unready" (no pool is), "refused" (takes no requests); or it does not speak:
        "silent", "gone" (for so long that others take over), "stopped" (on purpose).
        """
        if self.silent_s >= KEEP_S:
            return "stopped"
        if self.silent_s > self.lease_s:
            return "gone"
        if self.silent_s > HEARD_S:
            return "silent"
        if self.report.refused:
            return "refused"
        return "ready" if any(load.state == "ready" for load in self.loads) else "unready"

    @property
    def takes_part(self) -> bool:
        return self.state in ("ready", "unready")

    @property
    def trouble(self) -> str:
        """Why it does not take part, in words; "": it does."""
        if self.state == "stopped":
            return "was stopped: the others take over what it had"
        if self.state == "gone":
            return f"not heard for {shown_s(self.silent_s)}: the others take over what it had"
        if self.state == "silent":
            return f"not heard for {shown_s(self.silent_s)}"
        return f"takes no requests: {self.report.refused}" if self.state == "refused" else ""


def seen_nodes(store: Store) -> list[SeenNode]:
    """All nodes by name, the own one among them. Raises redis' errors."""
    found = nodes(store)
    own = store.keys.node
    if not any(node.report.node == own for node in found):  # alone, or its router has not begun
        found = sorted([*found, Node(NodeReport(node=own), 0.0)], key=lambda one: one.report.node)
    names = [node.report.node for node in found]
    keys, queues = keys_and_queues(store, names)
    loads = reports_of(store, keys)
    return [
        SeenNode(node.report, node.silent_s, store.lease_s, loads[name], queues[name])
        for name, node in zip(names, found, strict=True)
    ]


def keys_and_queues(
    store: Store, names: Sequence[str]
) -> tuple[dict[str, list[bytes]], dict[str, dict[str, int]]]:
    """Of each node: keys of its pools' reports, and how many jobs wait for each pool."""
    with store.redis.pipeline(transaction=False) as pipeline:
        for node in names:
            pipeline.smembers(store.keys.pools_of(node))
            for pool in pools_of(node):
                pipeline.llen(store.keys.queue(pool))
        told = iter(pipeline.execute())
    keys: dict[str, list[bytes]] = {}
    queues: dict[str, dict[str, int]] = {}
    for node in names:
        keys[node] = sorted(cast(set[bytes], next(told)))
        queues[node] = {pool: int(next(told)) for pool in pools_of(node)}
    return keys, queues


def reports_of(
    store: Store, keys: Mapping[str, Sequence[bytes]]
) -> dict[str, tuple[PoolLoad, ...]]:
    """What the pools of each node said last. keys: of their reports, by node"""
    every = [key for mine in keys.values() for key in mine]
    reports = iter(cast(list[bytes | None], store.redis.mget(every)) if every else [])
    told = {node: [pool_load(next(reports)) for _ in mine] for node, mine in keys.items()}
    return {node: tuple(filter(None, mine)) for node, mine in told.items()}


def shares(seen: Sequence[SeenNode]) -> dict[str, float]:
    """The part of the fleet's speed that is each node's, by name; 0 of one that takes no part."""
    if len(seen) == 1:
        return {seen[0].name: 1.0}
    speeds = {node.name: node.report.speed if node.takes_part else 0.0 for node in seen}
    total = sum(speeds.values())
    return {name: speed / total if total else 0.0 for name, speed in speeds.items()}


def loads_of(seen: Iterable[SeenNode]) -> list[PoolLoad]:
    """Of all of them together."""
    return [load for node in seen for load in node.loads]


def kv_by_home(loads: Iterable[PoolLoad]) -> list[Mapping[str, float]]:
    """What is said of each home's folder of sessions, once: its pools say the same of it.

    A worker is called HOME-POOL-SLOT.
    """
    return list({load.worker.partition("-")[0]: load.kv for load in loads if load.kv}.values())


def queues_of(seen: Iterable[SeenNode]) -> dict[str, int]:
    """Of all of them together, by pool."""
    return {pool: queued for node in seen for pool, queued in node.queues.items()}


def shown_s(seconds: float) -> str:
    """ "42 s", "7 min", "3 h", "12 days" """
    for unit, long_s in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * long_s:
            return f"{seconds / long_s:.0f} {unit}"
    return f"{seconds:.0f} s"
