"""Sends each request when its time has come, and never waits for an answer to send the next."""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from ingest.command.bench.serve.record import Record
from router.simulator.workload import Wish

LEAD_S: Final = 0.2  # before the first arrival


class Clock:
    """Seconds since the beginning of the run; negative before it."""

    def __init__(self) -> None:
        self.begin = time.perf_counter() + LEAD_S

    def now(self) -> float:
        return time.perf_counter() - self.begin


class Way(Protocol):
    """How a request reaches the node: by HTTP or by Redis."""

    async def ask(self, wish: Wish, record: Record, clock: Clock) -> None:
        """Sends it and writes into the record what comes back, until its end."""

    async def close(self, left: Sequence[Record]) -> None:
        """Ends what has not ended, and lets go of the node."""


async def drive(
    wishes: Sequence[Wish], way: Way, patience_s: float, progress: Callable[[int], None]
) -> list[Record]:
    """One record of each wish.

    patience_s  how long after the last arrival an answer is waited for
    """
    clock, records = Clock(), []
    tasks: dict[asyncio.Task[None], Record] = {}
    for wish in wishes:
        at_s = wish.arrival_ms / 1000
        while (wait_s := at_s - clock.now()) > 0:
            await asyncio.sleep(wait_s)
        record = Record(wish.id, wish.sla, at_s, wish.prompt, wish.max_tokens)
        record.sent_s = clock.now()
        records.append(record)
        tasks[asyncio.create_task(way.ask(wish, record, clock))] = record
        progress(len(records))
    pending: set[asyncio.Task[None]] = set()
    if tasks:
        _, pending = await asyncio.wait(tasks, timeout=patience_s)
    for task in pending:
        task.cancel()
    if pending:
        await asyncio.wait(pending)
    await way.close([tasks[task] for task in pending])
    for task in tasks.keys() - pending:
        task.result()  # a fault of our own is told
    return records
