"""What a simulated fleet did: how long requests waited for a pool, who did what, who came home."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Final

from router.simulator.clock import Clock
from router.simulator.fleet.fleet import Fleet
from router.simulator.fleet.load import Case
from router.simulator.fleet.node import FleetNode
from router.simulator.job import FINISHED, Job
from router.simulator.workload import Wish
from workers.sla import SlaTable

WARM_UP: Final = 0.1  # of the time: what comes before is not judged
DEATH_MS: Final = 10_000.0  # between two
PERCENTILES: Final = (50, 95, 99)


@dataclass(slots=True)
class Findings:
    """Of requests that came after the warm-up. ms, by class: from arrival to a router, a pool, the
    first token.

    work     requests that ended at each node        speed  of each, requests a second
    later, at_home  turns of conversations; those that ran on the node of the turn before
    adopted_ms  of requests of dead nodes: from the death until another node had them
    """

    read_ms: dict[str, list[float]] = field(default_factory=dict)
    claim_ms: dict[str, list[float]] = field(default_factory=dict)
    first_ms: dict[str, list[float]] = field(default_factory=dict)
    met: Counter[str] = field(default_factory=Counter)
    judged: Counter[str] = field(default_factory=Counter)
    adopted_ms: list[float] = field(default_factory=list)
    work: Counter[str] = field(default_factory=Counter)
    speed: dict[str, float] = field(default_factory=dict)
    later: int = 0
    at_home: int = 0
    moved: int = 0
    refused: int = 0
    lost: int = 0
    sessions: int = 0
    requests: int = 0
    num_events: int = 0


def simulate(case: Case, table: SlaTable) -> Findings:
    """One case, to the end of all that has come."""
    clock, found = Clock(), Findings()
    fleet = Fleet(case.hardware(), table, clock)
    found.speed = {node.name: node.speed for node in fleet.nodes}
    requests = case.wishes(sum(found.speed.values()))
    begin_ms, end_ms = 1000 * case.seconds * WARM_UP, 1000 * case.seconds
    before = settle(fleet, requests, Random(case.seed))
    fleet.on_end = partial(count, found, table, begin_ms, before)
    fleet.closes_ms = end_ms
    fleet.expect(requests)
    for number in range(case.deaths):
        victim = fleet.nodes[number * len(fleet.nodes) // max(1, case.deaths)]
        clock.at(end_ms / 2 + number * DEATH_MS, partial(fleet.kill, victim.name))
    clock.run()
    found.sessions, found.requests = case.sessions, fleet.num_arrived
    found.adopted_ms = fleet.adopted_ms
    found.lost = fleet.num_arrived - fleet.num_ended
    found.num_events = clock.num_events
    return found


def settle(fleet: Fleet, requests: Sequence[Wish], random: Random) -> dict[str, str]:
    """Conversations are at home on nodes, by their speed; the node of each."""
    nodes = random.choices(fleet.nodes, [node.speed for node in fleet.nodes], k=len(requests))
    at_home = {}
    for wish, node in zip(requests, nodes, strict=True):
        assert wish.session is not None
        fleet.homes[wish.session] = (next(iter(node.pools)), wish.history)
        at_home[wish.session] = node.name
    return at_home


def count(
    found: Findings,
    table: SlaTable,
    begin_ms: float,
    before: dict[str, str],
    job: Job,
    node: FleetNode,
) -> None:
    """before: the node of each conversation's last turn"""
    wish, session = job.wish, job.wish.session
    last = before.get(session) if session else None
    if session:
        before[session] = node.name
    if wish.arrival_ms < begin_ms:
        return
    found.judged[job.sla] += 1
    found.met[job.sla] += job.is_met(table)
    if job.state != FINISHED:
        found.refused += 1
        return
    found.work[node.name] += 1
    found.moved += job.moves > 0
    if last is not None:
        found.later += 1
        found.at_home += last == node.name
    moments = (job.read_ms, job.claimed_ms, job.first_ms)
    for what, moment in zip(("read_ms", "claim_ms", "first_ms"), moments, strict=True):
        assert moment is not None, job.id
        getattr(found, what).setdefault(job.sla, []).append(moment - wish.arrival_ms)


def percentiles(values: Sequence[float]) -> tuple[float, ...]:
    """p50, p95, p99, by nearest rank."""
    ordered = sorted(values)
    return tuple(ordered[min(len(ordered) - 1, len(ordered) * p // 100)] for p in PERCENTILES)


def balance(found: Findings) -> dict[str, float]:
    """Of each node: its share of the work over its share of the speed; 1 is even."""
    work, speed = sum(found.work.values()), sum(found.speed.values())
    return {name: found.work[name] / work / (s / speed) for name, s in found.speed.items()}
