"""Capacities of many systems on many workloads: cases, worked through by several processes.

A case is a system, a workload and a context; each of its seeds is a task of its own. The same seed
has the same requests for every system.
"""

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Final

from router.simulator.azure import Row as TraceRow
from router.simulator.azure import replay
from router.simulator.capacity import Effort, Source, best_of, drawn, interval
from router.simulator.hardware import Hardware
from router.simulator.systems import BASELINES, System, variants
from router.simulator.workload import Wish, Workload
from workers.sla import SlaTable

SAMPLE: Final = 400  # requests from which the first guess is made
TRACE_SHARES: Final[Mapping[str, float]] = {"realtime": 0.3, "standard": 0.4, "batch": 0.3}
Tell = Callable[[str, int, int], None]  # what was done, how many are done, of how many


@dataclass(frozen=True, slots=True)
class Load:
    """Where requests come from: one of our workloads, or a trace."""

    name: str
    hardware: Hardware
    contexts: tuple[int, ...]
    workload: Workload | None = None
    trace: tuple[TraceRow, ...] = ()

    def source(self, context: int) -> Source:
        if self.workload is not None:
            return drawn(self.workload, context)
        return lambda rate, seed, horizon_s: shifted(self.trace, rate, context, horizon_s, seed)


@dataclass(frozen=True, slots=True)
class Task:
    """One seed of a case."""

    system: str
    load: Load
    context: int
    seed: int


@dataclass(frozen=True, slots=True)
class Row:
    """The capacity of one case, requests a second of one node; its interval is 90 %."""

    system: str
    workload: str
    context: int
    capacity_rps: float
    low_rps: float
    high_rps: float
    chosen: str = ""


def study(
    systems: Sequence[str],
    loads: Sequence[Load],
    table: SlaTable,
    effort: Effort,
    *,
    processes: int,
    tell: Tell,
) -> list[Row]:
    """All cases, in the order of loads, contexts, systems."""
    tasks = [
        Task(system, load, context, seed)
        for load in loads
        for context in load.contexts
        for system in systems
        for seed in range(effort.seeds)
    ]
    found: list[tuple[float, str] | None] = [None] * len(tasks)
    for count, (index, capacity) in enumerate(done(tasks, table, effort, processes), 1):
        found[index] = capacity
        task = tasks[index]
        tell(f"{task.load.name} {task.context} {task.system}", count, len(tasks))
    return [
        row_of(tasks[begin], [one for one in found[begin : begin + effort.seeds] if one])
        for begin in range(0, len(tasks), effort.seeds)
    ]


def done(
    tasks: Sequence[Task], table: SlaTable, effort: Effort, processes: int
) -> Iterator[tuple[int, tuple[float, str]]]:
    """The place of each task, with its capacity and its variant, as they are done."""
    if processes <= 1:
        for index, task in enumerate(tasks):
            yield index, capacity_of(task, table, effort)
        return
    fresh = multiprocessing.get_context("spawn")  # no thread of ours is carried over
    ignoring = (signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all: this process ends the others
    with ProcessPoolExecutor(processes, fresh, signal.signal, ignoring) as pool:
        asked: dict[Future[tuple[float, str]], int] = {
            pool.submit(capacity_of, task, table, effort): index for index, task in enumerate(tasks)
        }
        try:
            for future in as_completed(asked):
                yield asked[future], future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for child in multiprocessing.active_children():
                child.terminate()
            raise


def capacity_of(task: Task, table: SlaTable, effort: Effort) -> tuple[float, str]:
    """Requests a second of one node, and the numbers with which it was the best."""
    source, hardware = task.load.source(task.context), task.load.hardware
    guess = guessed(source, hardware, effort.horizon_s(1.0))
    systems = variants(task.system)
    best, chosen = best_of(systems, hardware, table, source, effort, task.seed, guess)
    return best, named(chosen) if len(systems) > 1 else ""


def guessed(source: Source, hardware: Hardware, horizon_s: float) -> float:
    """Where the search begins: what the first pool alone might do, by its work and its memory."""
    pool = next(iter(hardware.pools.values()))
    cost = pool.cost
    sample = source(SAMPLE / horizon_s, 0, horizon_s)[:SAMPLE]
    work_ms = stay = 0.0
    for wish in sample:
        work_ms += (wish.prompt - wish.history) * cost.token_ms(wish.prompt / 2)
        work_ms += wish.output * (cost.step_ms(4, 4 * wish.prompt) / 4)
        stay += wish.output * cost.step_ms(2, 2 * wish.prompt) * (wish.prompt + wish.max_tokens)
    by_work = 1000 * len(sample) / max(1.0, work_ms)
    by_memory = 1000 * len(sample) * pool.tokens / max(1.0, stay)
    return min(by_work, by_memory)


def shifted(
    rows: Sequence[TraceRow], rate: float, context: int, horizon_s: float, seed: int
) -> list[Wish]:
    """The trace from another place on for each seed."""
    begin = seed * 997 % len(rows)
    turned = [*rows[begin:], *rows[:begin]]
    first_s, length_s = turned[0].at_s, rows[-1].at_s + rows[-1].at_s / len(rows)
    moved = [TraceRow((row.at_s - first_s) % length_s, row.prompt, row.output) for row in turned]
    return replay(moved, rate, context, horizon_s, TRACE_SHARES)


def row_of(task: Task, found: Sequence[tuple[float, str]]) -> Row:
    """Of a case, from what its seeds gave."""
    values = [capacity for capacity, _ in found]
    low, high = interval(values)
    mean = sum(values) / len(values)
    return Row(task.system, task.load.name, task.context, mean, low, high, found[0][1])


def named(system: System) -> str:
    """The numbers of a variant."""
    chunk, budget_ms = system.kind.chunk, system.kind.budget_ms
    parts = [f"steps of {budget_ms} ms" if chunk is None else f"chunk {chunk}"]
    if system.share is not None:
        parts.append(f"{system.share:.0%} to the CPU")
    if system.length is not None:
        parts.append(f"prompts up to {system.length} to the CPU")
    return ", ".join(parts)


def best_baseline(rows: Sequence[Row], workload: str, context: int) -> Row | None:
    """Of one workload and context; None: no baseline was asked for."""
    mine = [row for row in rows if (row.workload, row.context) == (workload, context)]
    return max(
        (row for row in mine if row.system in BASELINES),
        key=lambda row: row.capacity_rps,
        default=None,
    )
