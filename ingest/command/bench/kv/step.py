"""A decode step while a session is written beside it, and while none is."""

import threading
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any, Final

import numpy as np

from ingest.command.bench.kv.plan import TENANT, Plan, Progress, Row, rounded, row
from ingest.command.bench.kv.seat import BATCH, Seat
from workers.engine.engine import Engine
from workers.session.writer import step_aside

STEPS: Final = 60  # of a round


def step_rows(plan: Plan, seat: Seat, num_tokens: int, progress: Progress) -> list[Row]:
    """p99 of a step, with a thread that writes a session over and over, as a pool's writer does."""
    step = talking(seat, 2 * STEPS * plan.rounds + 64).step
    quiet: list[float] = []
    busy: list[float] = []
    written: list[float] = []
    for number in range(plan.rounds):
        progress("steps", number, plan.rounds)
        quiet += list(step_times(step))
        with_writer = Suspending(seat, num_tokens)
        with_writer.start()
        busy += list(step_times(step))
        written.append(with_writer.finish())
    seat.clear()
    p50, p99 = np.percentile(busy, (50, 99)).tolist()
    quiet_p50, quiet_p99 = np.percentile(quiet, (50, 99)).tolist()
    more = {"sessions": BATCH, "without_ms": rounded(quiet_p99), "p50_ms": rounded(p50)}
    more |= {"p50_without_ms": rounded(quiet_p50), "gb_per_s": rounded(median(written))}
    return [row("step p99", "ms", p99, rounded(quiet_p99), tokens=num_tokens, **more)]


def talking(seat: Seat, num_steps: int) -> Engine:
    """An engine whose sequences decode for so many steps, at least."""
    engine = seat.engine()
    for number in range(BATCH):
        ids = seat.token_ids(64, number)
        engine.add(seat.request(ids, TENANT, max_tokens=num_steps))
    for _ in range(16):
        engine.step()
    return engine


def step_times(step: Callable[[], Any]) -> Iterator[float]:
    """Milliseconds."""
    for _ in range(STEPS):
        begin = time.perf_counter()
        step()
        yield (time.perf_counter() - begin) * 1e3


class Suspending(threading.Thread):
    """Writes a session, takes it away and writes it again, until it is told to finish."""

    def __init__(self, seat: Seat, num_tokens: int) -> None:
        super().__init__()
        self.seat = seat
        self.sources = list(seat.made_up(seat.token_ids(num_tokens, 7), TENANT))
        self.stopping = threading.Event()
        self.num_bytes, self.seconds = 0, 0.0

    def run(self) -> None:
        step_aside()
        begin = time.perf_counter()
        while not self.stopping.is_set():
            for source in self.sources:
                if not self.stopping.is_set():
                    self.num_bytes += self.seat.tier.put(TENANT, [source])
            for source in self.sources:
                self.seat.tier.objects.drop(source.kind, source.key)
        self.seconds = time.perf_counter() - begin

    def finish(self) -> float:
        """GB/s that were written meanwhile."""
        self.stopping.set()
        self.join()
        return self.num_bytes / self.seconds / 1e9
