"""Token streams as they grow: one connection that reads every stream somebody listens to.

    listen(ID) ──► Listener ──┐
    listen(ID) ──► Listener ──┼──► one XREAD BLOCK over all their keys ──► each listener's `pending`
    listen(ID) ──► Listener ──┘

A step of a pool writes the tokens of all its sequences in one script, so one reply carries them
all: a token costs little more than parsing it. A new listener interrupts the blocked read (CLIENT
UNBLOCK), and the next read has its key too. Each key is read from where its slowest listener is; a
store that goes away is waited for, and nothing is missed. While anybody listens the store is asked
now and then whether it lives: a master that hangs ends no read.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Iterable
from typing import Any, Final

import redis.asyncio
from redis.exceptions import RedisError, ResponseError

from workers.log import logger
from workers.master.client import StoreClients
from workers.wire import END_ENTRY_ID, EndEvent, Keys, TokenEvent
from workers.wire_fields import parse_entry

ENTRY_ID: Final = re.compile(r"([0-9]{1,19})(?:-([0-9]{1,19}))?")
BLOCK_MS: Final = 20_000
RETRY_S: Final = 0.5
CANCEL_AGAIN_S: Final = 0.1
ENTRIES_PER_READ: Final = 256  # of each stream
NUDGE_S: Final = 0.002  # between two tries to interrupt a read that is on its way to the store
WATCH_S: Final = 2.0  # between two questions whether the store lives
SILENCE_S: Final = 15.0  # a listener hears of a silence so long, to say something to its client

Event = TokenEvent | EndEvent
Entry = tuple[str, Event]  # entry id and event


class Stopping(Exception):
    """This process ends; the request goes on without it."""


class Listener:
    """One reader of one token stream. after: the last entry it has."""

    def __init__(self, key: str, after: str) -> None:
        self.key = key
        self.after = order(after)
        self.pending: list[Entry] = []
        self.news = asyncio.Event()
        self.is_silent = False  # nothing came since call_silence looked
        self.error: Exception | None = None

    def call_silence(self) -> None:
        """Called every SILENCE_S: wakes the listener when nothing came since the last time."""
        if self.is_silent:
            self.news.set()
        self.is_silent = True

    def offer(self, entry_id: str, event: Event) -> None:
        if order(entry_id) > self.after:
            self.after = order(entry_id)
            self.pending.append((entry_id, event))
            self.is_silent = False
            self.news.set()

    def fail(self, error: Exception) -> None:
        """Its key cannot be read: nothing more will come, and the others are read on."""
        self.error = error
        self.news.set()

    async def take(self) -> list[Entry]:
        """What came since the last call, waiting for it; empty when only a silence was called.

        Raises ResponseError when the key holds no token stream.
        """
        await self.news.wait()
        self.news.clear()
        if self.error is not None:
            raise self.error
        taken, self.pending = self.pending, []
        return taken


def order(entry_id: str) -> tuple[int, int]:
    """An entry id as what it is compared by. Raises ValueError when it is none."""
    match = ENTRY_ID.fullmatch(entry_id)
    if match is None:
        raise ValueError("must be the id of an event of this stream, like 0-17")
    return int(match[1]), int(match[2] or 0)


async def cancelled(*tasks: asyncio.Task[None]) -> None:
    """Cancels tasks until they have ended.

    Once is not enough: Python 3.11's wait_for, which redis uses, loses a cancellation that comes
    together with the result.
    """
    while pending := {task for task in tasks if not task.done()}:
        for task in pending:
            task.cancel()
        await asyncio.wait(pending, timeout=CANCEL_AGAIN_S)


class TokenReader:
    """Reads for all listeners of this process; run() is its one task."""

    def __init__(self, url: str, keys: Keys) -> None:
        self.keys = keys
        self.clients = StoreClients(url, keys.prefix)
        self.listeners: list[Listener] = []
        self.version = 0  # of the set of listeners
        self.reading = 0  # the version that the read under way knows
        self.changed = asyncio.Event()
        self.occupied = asyncio.Event()  # somebody listens
        self.stopped = False
        self.client_id = 0  # of the reading connection

    async def listen(self, request_id: str, after: str = "0-0") -> AsyncIterator[list[Entry]]:
        """What comes behind entry `after`, up to the end event; [] for each long silence.

        Raises Stopping when this process ends before the request does.
        """
        if order(after) >= order(END_ENTRY_ID):
            return
        listener = Listener(self.keys.tokens(request_id), after)
        self.listeners.append(listener)
        self.version += 1
        self.changed.set()
        self.occupied.set()
        try:
            while True:
                entries = await listener.take()
                if self.stopped:
                    raise Stopping
                yield entries
                if entries and entries[-1][0] == END_ENTRY_ID:
                    return
        finally:
            self.listeners.remove(listener)
            if not self.listeners:
                self.occupied.clear()

    def stop(self) -> None:
        """Lets every listener go: their clients come back to the next process."""
        self.stopped = True
        for listener in self.listeners:
            listener.news.set()

    async def run(self) -> None:
        """Reads until cancelled; cancelled() waits for it."""
        connection = self._pool(BLOCK_MS / 1000 + 10).make_connection()
        tasks = [
            asyncio.create_task(self._nudge(connection)),
            asyncio.create_task(self._watch(connection)),
            asyncio.create_task(self._call_silences()),
        ]
        try:
            while True:
                try:
                    await self._read(connection)
                except (RedisError, OSError) as error:
                    logger("api").debug("token reader waits for the store", error=str(error))
                    await connection.disconnect(nowait=True)
                    await asyncio.sleep(RETRY_S)
        finally:
            await cancelled(*tasks)
            await connection.disconnect(nowait=True)

    def _pool(self, timeout_s: float) -> Any:
        return self.clients.async_pool(socket_timeout=timeout_s, protocol=2)

    async def _read(self, connection: Any) -> None:
        """Reads on one bare connection, as long as it holds; the client's layers cost more."""
        await connection.connect()
        await connection.send_command("CLIENT", "ID")
        self.client_id = await connection.read_response()
        while True:
            while not self._wanted():
                self.changed.clear()
                await self.changed.wait()
            self.reading = self.version
            wanted = self._wanted()
            options = ("COUNT", ENTRIES_PER_READ, "BLOCK", BLOCK_MS)
            await connection.send_command("XREAD", *options, "STREAMS", *wanted, *wanted.values())
            try:
                reply = await connection.read_response()
            except ResponseError as error:
                if not str(error).startswith("WRONGTYPE"):
                    raise
                await self._fail_others(connection, wanted)
                continue
            for raw_key, entries in reply or ():
                key = raw_key.decode()
                self._deal(key, entries, order(wanted[key]))

    async def _fail_others(self, connection: Any, wanted: Iterable[str]) -> None:
        """One key that is no stream, written by hand, refuses the read of all."""
        for key in wanted:
            await connection.send_command("TYPE", key)
            if await connection.read_response() not in (b"stream", b"none"):
                self._fail(key, "it is no stream")

    def _fail(self, key: str, why: str) -> None:
        for listener in self.listeners:
            if listener.key == key:
                listener.fail(ResponseError(f"{key} cannot be read: {why}"))

    def _wanted(self) -> dict[str, str]:
        """Each key with the entry that its slowest listener has."""
        behind: dict[str, tuple[int, int]] = {}
        for listener in self.listeners:
            if listener.error is not None:
                continue
            behind[listener.key] = min(listener.after, behind.get(listener.key, listener.after))
        return {key: f"{a}-{b}" for key, (a, b) in behind.items()}

    def _deal(self, key: str, entries: list[Any], since: tuple[int, int]) -> None:
        """To those who have all entries up to `since`, after which the key was read.

        Who came meanwhile and is further behind would miss what lies between: its read is next.
        """
        takers = [one for one in self.listeners if one.key == key and one.after >= since]
        for raw_id, flat in entries:
            entry_id = raw_id.decode()
            try:
                event = parse_entry(entry_id, dict(zip(flat[::2], flat[1::2], strict=True)))
            except (KeyError, ValueError) as error:  # not from a pool
                return self._fail(key, f"entry {entry_id} is no event ({error!r})")
            for listener in takers:
                listener.offer(entry_id, event)

    async def _nudge(self, reading: Any) -> None:
        """Interrupts a blocked read whenever a listener came that it does not know."""
        client = redis.asyncio.Redis(connection_pool=self._pool(5))
        try:
            while True:
                await self.changed.wait()
                self.changed.clear()
                await asyncio.sleep(0)  # a reader that had nothing to read starts by itself
                while self.reading < self.version:
                    try:
                        await client.client_unblock(self.client_id)
                        is_over = await self._leave_an_earlier_master(reading)
                        await asyncio.sleep(RETRY_S if is_over else NUDGE_S)
                    except (RedisError, OSError):
                        await asyncio.sleep(RETRY_S)
        finally:
            await client.connection_pool.disconnect()

    async def _watch(self, reading: Any) -> None:
        """Gives up a read that waits for an earlier master, once another one is found."""
        client = redis.asyncio.Redis(connection_pool=self._pool(5))
        try:
            while True:
                await self.occupied.wait()
                try:
                    await client.ping()
                    await self._leave_an_earlier_master(reading)
                    await asyncio.sleep(WATCH_S)
                except (RedisError, OSError):
                    await asyncio.sleep(RETRY_S)
        finally:
            await client.connection_pool.disconnect()

    async def _leave_an_earlier_master(self, reading: Any) -> bool:
        is_over = self.clients.leads_elsewhere(reading)
        if is_over:
            await reading.disconnect(nowait=True)
        return is_over

    async def _call_silences(self) -> None:
        while True:
            await asyncio.sleep(SILENCE_S)
            for listener in self.listeners:
                listener.call_silence()
