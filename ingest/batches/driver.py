"""Drives one batch: its lines become requests, their answers become rows, until it is over.

    input file ──► at most `in_flight` lines ──► requests BATCH-LINE of class batch ──► rows

One driver a batch, whoever else shares the folder: it holds the lock of the batch's marker, which
the kernel takes back from a process that is killed. The next one reads the rows that are there and
asks again for the rest, by the same ids: what has run, or runs, is found and not done again.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, Final

from anyio.to_thread import run_sync
from redis.exceptions import RedisError

from ingest.batches.answers import Answered, Asked, Begin
from ingest.batches.lines import Line, look_through, numbered, parse
from ingest.batches.record import Batch, Books, Fault
from ingest.batches.results import Results
from ingest.errors import ApiError
from ingest.tokens import cancelled
from ingest.turn import Turn
from workers.clock import now_ms
from workers.log import logger

LOOK_S: Final = 0.5  # between two looks at the clock and at the wish to cancel
RETRY_S: Final = 1.0  # after the store, or the disk, took nothing
LATE: Final = ("expired", "impossible_deadline")  # codes of a line whose window is over
GONE: Final = Fault("file_not_found", "the input file is gone")
LATE_ERROR: Final = {
    "code": "batch_expired",
    "message": "This request could not be executed before the completion window expired.",
}

Answering = Callable[[Asked, Begin], Awaitable[Answered]]
Cancelling = Callable[[str], Awaitable[Any]]


class GivenUp(Exception):
    """The batch ends before the line began."""


class Driver:
    """One for a batch that this process has the lock of.

    answer     answers one line (answers.py); raises Stopping when this process ends
    cancel     of a request, by its full id
    in_flight  lines that are requests at once
    """

    def __init__(
        self,
        books: Books,
        tenant: str,
        batch: Batch,
        *,
        answer: Answering,
        cancel: Cancelling,
        in_flight: int,
    ) -> None:
        self.books, self.tenant, self.batch = books, tenant, batch
        self.answer, self.cancel = answer, cancel
        self.places = asyncio.Semaphore(in_flight)
        self.beginning = asyncio.Lock()  # one at a time, so that a full node refuses one at a time
        self.turns: dict[int, list[Turn]] = {}  # of the lines that are under way
        self.ending = asyncio.Event()
        self.end = "completed"  # the status that it will have
        self.input = books.shelf.path(tenant, batch.input_file_id)
        self.results = Results(books, tenant, batch)

    async def run(self) -> None:
        """Returns when the batch is over. Raises Stopping when this process ends first."""
        if self.batch.status == "validating":
            await run_sync(self.look_through)
        elif not self.input.exists():
            await run_sync(self.fail, [GONE])
        if self.batch.is_over:
            return
        await run_sync(self.results.recover)
        watching = asyncio.create_task(self.watch())
        try:
            await self.run_lines()
        finally:
            await cancelled(watching)
            await run_sync(self.results.save)
        await run_sync(self.finish)

    def look_through(self) -> None:
        """From validating to in_progress or failed."""
        batch = self.batch
        try:
            batch.total, batch.model, faults = look_through(self.input, batch.endpoint)
        except FileNotFoundError:
            faults = [GONE]
        if faults:
            return self.fail(faults)
        batch.status, batch.in_progress_at = "in_progress", int(time.time())
        self.books.write(self.tenant, batch)

    def fail(self, faults: list[Fault]) -> None:
        self.batch.faults, self.batch.status = faults, "failed"
        self.batch.failed_at = int(time.time())
        self.books.end(self.tenant, self.batch)

    # --- the lines ---

    async def run_lines(self) -> None:
        """Each line that has no row yet, until all have one or the end is called."""
        lines = self.lines_left()
        async with asyncio.TaskGroup() as group:
            while not self.ending.is_set():
                await self.places.acquire()
                found = await run_sync(next, lines, None)
                if found is None:
                    return
                group.create_task(self.run_line(*found))

    def lines_left(self) -> Iterator[tuple[int, Line]]:
        """Numbers and requests, in the order of the file."""
        with self.input.open("rb") as file:
            for number, raw in numbered(file):
                line = parse(raw, number, self.batch.endpoint)
                assert isinstance(line, Line), "it was looked through"
                if number not in self.results.done:
                    yield number, line

    async def run_line(self, number: int, line: Line) -> None:
        try:
            asked = Asked(
                endpoint=self.batch.endpoint,
                body=line.body,
                request_id=f"{self.batch.id}-{number}",
                left_ms=1000 * self.batch.expires_at - now_ms(),
            )
            turns = self.turns[number] = []
            answered = await self.answer(asked, partial(self.begun, turns))
            if not (self.ending.is_set() and answered.code == "cancelled"):
                await self.keep(number, line, answered)
        except GivenUp:
            pass
        finally:
            self.turns.pop(number, None)
            self.places.release()

    async def begun(self, turns: list[Turn], beginning: Callable[[], Awaitable[Turn]]) -> Turn:
        """Begins a turn as soon as the node takes it. Raises GivenUp when the batch ends first."""
        async with self.beginning:
            while not self.ending.is_set():
                try:
                    turn = await beginning()
                    turns.append(turn)
                    return turn
                except ApiError as error:
                    if error.retry_after_s is None:
                        raise
                    await self.pause(error.retry_after_s)
                except (RedisError, OSError) as error:
                    logger("api").debug("a batch waits for the store", error=str(error))
                    await self.pause(RETRY_S)
        raise GivenUp

    async def keep(self, number: int, line: Line, answered: Answered) -> None:
        """Writes the line's row, however long the disk is full."""
        if answered.code in LATE:
            told: dict[str, Any] = {"error": LATE_ERROR}
        else:
            status, request_id = answered.status, answered.request_id
            body = {"status_code": status, "request_id": request_id, "body": answered.body}
            told = {"response": body}
        while True:
            try:
                return await run_sync(partial(self.results.add, number, line.custom_id, **told))
            except OSError as error:
                logger("api").warning("a batch waits for its disk", error=str(error))
                await asyncio.sleep(RETRY_S)

    async def pause(self, seconds: float) -> None:
        """So long, or until the end is called."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self.ending.wait(), seconds)

    # --- the end ---

    async def watch(self) -> None:
        """Looks at the clock and at the wish to cancel; from then on at what still runs."""
        while True:
            await asyncio.sleep(LOOK_S)
            if not self.results.is_saved:
                await run_sync(self.results.save)
            if not self.ending.is_set():
                self.look_for_end()
            if self.ending.is_set():
                for turn in [turn for turns in self.turns.values() for turn in turns]:
                    await self.cancel(turn.request.id)

    def look_for_end(self) -> None:
        if self.books.cancelling_at(self.tenant, self.batch.id) is not None:
            self.end = "cancelled"
        elif time.time() >= self.batch.expires_at:
            self.end = "expired"
        else:
            return
        self.ending.set()

    def finish(self) -> None:
        """From in_progress to what it ends as: rows on the disk first."""
        batch = self.batch
        batch.finalizing_at = int(time.time())
        if self.end == "expired":
            for number, line in self.lines_left():
                self.results.add(number, line.custom_id, error=LATE_ERROR)
        self.results.close()
        batch.status = self.end
        setattr(batch, f"{self.end}_at", int(time.time()))
        self.books.end(self.tenant, batch)
