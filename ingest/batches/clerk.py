"""Looks after batches: finds those that are not over, drives them, and clears away what is old.

One task of the api process. Several processes on one folder share the batches out by their locks.
"""

import asyncio
import fcntl
import os
import time
from contextlib import suppress
from functools import partial
from typing import Final

from anyio.to_thread import run_sync

from ingest.access.keys import Key
from ingest.batches.answers import answer_line
from ingest.batches.driver import Driver
from ingest.batches.record import Batch, Books
from ingest.batches.shelf import Shelf
from ingest.desk import Desk
from ingest.tokens import Stopping, cancelled
from workers.log import logger

LOOK_S: Final = 10.0  # for batches of a process that was killed
SWEEP_S: Final = 3600.0
IN_FLIGHT: Final = 256  # lines of one batch that are requests at once
GIVEN_UP_S: Final = 60.0  # a marker so old without a batch is of a process that was killed

Place = tuple[str, str]  # tenant, batch id


class Clerk:
    """One for the process; run() is its one task."""

    def __init__(self, desk: Desk) -> None:
        settings = desk.settings
        self.desk = desk
        self.shelf = Shelf(
            settings.home / "files",
            keep_free_bytes=settings.kv_keep_free_mib << 20,
            tenant_bytes=settings.files_tenant_mib << 20,
        )
        self.books = Books(self.shelf)
        self.news = asyncio.Event()  # a batch was made
        self.driving: dict[Place, asyncio.Task[None]] = {}
        self.swept_at = float("-inf")

    async def run(self) -> None:
        """Until cancelled; cancelled() waits for it."""
        try:
            while True:
                self.news.clear()
                await self.look()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self.news.wait(), LOOK_S)
        finally:
            await cancelled(*self.driving.values())

    async def look(self) -> None:
        """Begins to drive what nobody drives."""
        try:
            for place in await run_sync(self.books.open):
                if place not in self.driving:
                    task = asyncio.create_task(self.drive(place))
                    self.driving[place] = task
                    task.add_done_callback(partial(self.driven, place))
            if time.monotonic() - self.swept_at > SWEEP_S:
                self.swept_at = time.monotonic()
                await run_sync(self.sweep)
        except OSError as error:
            logger("api").warning("batches cannot be looked at", error=str(error))

    def driven(self, place: Place, task: asyncio.Task[None]) -> None:
        del self.driving[place]
        if not task.cancelled() and (error := task.exception()) is not None:
            logger("api").error("a batch is tried again", id=place[1], exc_info=error)

    async def drive(self, place: Place) -> None:
        """Drives one batch, unless another process does."""
        lock = await run_sync(self.lock, place)
        if lock is None:
            return
        try:
            batch = await run_sync(self.books.read, *place)
            if batch is None or batch.is_over:
                await run_sync(self.tidy, place, batch)
                return
            key = await self.desk.gate.named(batch.key, place[0])
            await self.driver(key, batch).run()
        except* Stopping:
            pass
        finally:
            os.close(lock)

    def driver(self, key: Key, batch: Batch) -> Driver:
        most = max(1, self.desk.settings.max_queue // 2)
        return Driver(
            self.books,
            key.tenant,
            batch,
            answer=partial(answer_line, self.desk, key),
            cancel=self.desk.cancel,
            in_flight=min(IN_FLIGHT, most),
        )

    def lock(self, place: Place) -> int | None:
        """The open marker, locked; None: it is gone, or another process has it."""
        try:
            descriptor = os.open(self.books.marker(*place), os.O_RDWR)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return descriptor

    def tidy(self, place: Place, batch: Batch | None) -> None:
        """A marker of a batch that is over, or of one that was never made."""
        marker = self.books.marker(*place)
        with suppress(FileNotFoundError):
            if batch is not None or marker.stat().st_mtime < time.time() - GIVEN_UP_S:
                marker.unlink()

    def sweep(self) -> None:
        self.shelf.sweep(time.time())
        for tenant in self.shelf.tenants():
            self.books.forget(tenant, time.time())
