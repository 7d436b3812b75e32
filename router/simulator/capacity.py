"""The highest open-loop rate at which every class meets its attainment.

One run: requests of one workload, context, rate and seed on one system; those that come in the
first tenth of the time only warm up. A rate is met when in every class enough of the requests kept
all promises, and, where the promise is an end, when the queue does not grow: else a run that is
shorter than the deadline would call any rate good.

Capacity is found by bisection for each seed, on the same requests for every system; the interval is
that of the mean over seeds, by bootstrap.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import floor
from random import Random
from typing import Final

from router.simulator.clock import Clock
from router.simulator.hardware import Hardware
from router.simulator.invariants import Invariants
from router.simulator.job import Job
from router.simulator.systems import System, build
from router.simulator.workload import Wish, Workload, wishes
from workers.sla import SlaTable

WARM_UP: Final = 0.1
DRAIN_S: Final = 3600.0  # after the last arrival; what has not ended by then never does
TOLERANCE: Final = 0.03  # relative: where bisection ends
STEP: Final = 1.6  # while the capacity is not yet between two rates
LEAST_RPS: Final = 1e-3  # what is below counts as nothing
GROWTH_SPARE: Final = 3  # requests by which a queue may grow by accident
RESAMPLES: Final = 1000

Source = Callable[[float, int, float], list[Wish]]  # rate, seed, horizon in s -> requests


@dataclass(slots=True)
class Outcome:
    """What became of a run's requests.

    judged, met  requests by class that came after the warm-up; those whose promises were kept
    growth       by class: how many more were there at the end of arrivals than after the warm-up
    """

    judged: Counter[str] = field(default_factory=Counter)
    met: Counter[str] = field(default_factory=Counter)
    growth: Counter[str] = field(default_factory=Counter)
    num_events: int = 0
    num_steps: int = 0
    is_cut: bool = False
    jobs: list[Job] = field(default_factory=list)

    def attainment(self, sla: str) -> float:
        return self.met[sla] / self.judged[sla] if self.judged[sla] else 1.0

    def is_good(self, table: SlaTable) -> bool:
        if self.is_cut:
            return False
        for sla in table:
            count = self.judged[sla.name]
            spare = allowed(sla.attainment, count)
            if count - self.met[sla.name] > spare:
                return False
            if sla.deadline_ms and self.growth[sla.name] > spare + GROWTH_SPARE:
                return False
        return True


def allowed(attainment: float, count: int) -> int:
    """Misses among so many requests; at least one, so that a short run is not lost by one."""
    return max(1, floor((1 - attainment) * count + 1e-9)) if attainment < 1 else 0


@dataclass(frozen=True, slots=True)
class Effort:
    """How long runs are: at least so long, and at least so many requests."""

    seeds: int = 2
    least_s: float = 600.0
    least_requests: int = 200

    def horizon_s(self, rate: float) -> float:
        return max(self.least_s, self.least_requests / rate)


class Recorder:
    """Counts what ends; says when a run is lost already."""

    def __init__(self, table: SlaTable, requests: Sequence[Wish], begin_ms: float) -> None:
        self.table, self.begin_ms = table, begin_ms
        self.outcome = Outcome()
        expected = Counter(wish.sla for wish in requests for _ in range(1 + len(wish.turns)))
        self.spare = {sla.name: allowed(sla.attainment, expected[sla.name]) for sla in table}

    def ended(self, job: Job) -> None:
        if job.wish.arrival_ms < self.begin_ms:
            return
        outcome, sla = self.outcome, job.wish.sla
        outcome.judged[sla] += 1
        outcome.met[sla] += job.is_met(self.table)
        if outcome.judged[sla] - outcome.met[sla] > self.spare[sla]:
            outcome.is_cut = True


def play(
    system: System,
    hardware: Hardware,
    table: SlaTable,
    requests: Sequence[Wish],
    horizon_s: float,
    *,
    is_patient: bool = False,
    has_door: bool = True,
    one_by_one: bool = False,
    is_checked: bool = False,
    let_in: Iterable[str] = (),
) -> Outcome:
    """One run.

    is_patient  to its end, also when it is lost; with all its jobs
    is_checked  with the invariants after every event. Raises Broken
    let_in      ids that the door takes, whatever is predicted
    """
    clock = Clock()
    node = build(system, hardware, table, clock, has_door=has_door, one_by_one=one_by_one)
    begin_ms, end_ms = 1000 * horizon_s * WARM_UP, 1000 * horizon_s
    recorder = Recorder(table, requests, begin_ms)
    outcome = recorder.outcome
    invariants = Invariants(node) if is_checked else None
    for pool in node.pools.values():
        pool.engine.is_checked = is_checked

    def on_end(job: Job) -> None:
        recorder.ended(job)
        if invariants is not None:
            invariants.ended(job)
        if is_patient:
            outcome.jobs.append(job)

    def count(sign: int) -> None:
        for job in node.jobs.values():
            outcome.growth[job.wish.sla] += sign

    node.on_end, node.closes_ms, node.let_in = on_end, end_ms, set(let_in)
    node.expect(requests)
    clock.at(begin_ms, lambda: count(-1))
    clock.at(end_ms, lambda: count(+1))
    clock.run(
        end_ms + 1000 * DRAIN_S,
        stop=lambda: (
            (outcome.is_cut and not is_patient) or (clock.now_ms >= end_ms and not node.jobs)
        ),
        watch=(lambda: None) if invariants is None else invariants.check,
    )
    outcome.num_events = clock.num_events
    outcome.num_steps = sum(pool.engine.num_steps for pool in node.pools.values())
    for job in node.jobs.values():  # it never ended
        recorder.ended(job)
    return outcome


def is_met(
    system: System, hardware: Hardware, table: SlaTable, requests: Source, effort: Effort, seed: int
) -> Callable[[float], bool]:
    """Whether a rate, of one node, is met."""

    def met(rate: float) -> bool:
        horizon_s = effort.horizon_s(rate * system.nodes)
        wanted = requests(rate * system.nodes, seed, horizon_s)
        return play(system, hardware, table, wanted, horizon_s).is_good(table)

    return met


def highest(met: Callable[[float], bool], guess: float, above: float = 0.0) -> float:
    """The highest rate that is met, within TOLERANCE; 0.0: none above `above` is."""
    low, high, rate = above, float("inf"), max(guess, above * (1 + TOLERANCE), LEAST_RPS)
    if above and not met(rate):
        return 0.0
    if above:
        low, rate = rate, rate * STEP
    while low == 0.0 or high == float("inf") or high > low * (1 + TOLERANCE):
        if met(rate):
            low = rate
            rate = rate * STEP if high == float("inf") else (low * high) ** 0.5
        else:
            high = rate
            rate = rate / STEP if low == 0.0 else (low * high) ** 0.5
        if high < LEAST_RPS:
            return 0.0
    return low


def best_of(
    systems: Sequence[System],
    hardware: Hardware,
    table: SlaTable,
    requests: Source,
    effort: Effort,
    seed: int,
    guess: float,
) -> tuple[float, System]:
    """Of one seed: the best variant's capacity."""
    best, chosen = 0.0, systems[0]
    for system in systems:
        found = highest(is_met(system, hardware, table, requests, effort, seed), guess, best)
        if found > best:
            best = guess = found
            chosen = system
    return best, chosen


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Of the mean, 90 %, by bootstrap over the values; the same for the same values."""
    random = Random(0)
    means = sorted(
        sum(random.choices(values, k=len(values))) / len(values) for _ in range(RESAMPLES)
    )
    return means[RESAMPLES // 20], means[-RESAMPLES // 20 - 1]


def drawn(workload: Workload, context: int) -> Source:
    """Requests of one of our workloads."""
    return lambda rate, seed, horizon_s: wishes(workload, context, rate, seed, horizon_s)
