"""Connections to whoever is the master when they are made, and that part with who is it no longer.

A server that was demoted, cut off, or given another part of the Cluster says so in its reply. That
becomes what a lost connection is: NotTheMaster, a ConnectionError, raised once. Nothing is sent
again here, for a write must not be (store_client.py); whoever called tries again, as after any
loss, and the next connection asks anew where the master is. A connection in a pool that leads to an
earlier master is made anew before it is used.
"""

import asyncio
from typing import Any, Final

import redis.asyncio
from redis import Connection, SSLConnection
from redis.exceptions import (
    AskError,
    ClusterDownError,
    ReadOnlyError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as StoreAway

from workers.master.finding import Master

# MOVED is an AskError, MASTERDOWN a ClusterDownError; the words are of errors without a type
ELSEWHERE: Final = (AskError, ClusterDownError, ReadOnlyError, TryAgainError)
WORDS: Final = ("NOREPLICAS ", "UNBLOCKED ")


class NotTheMaster(StoreAway):
    """The server answers, and is not whom the store is asked of, or not just now."""


def is_elsewhere(error: ResponseError) -> bool:
    """Whether a reply says that the master is another, or that this one may take nothing."""
    return isinstance(error, ELSEWHERE) or str(error).startswith(WORDS)


def said(error: ResponseError) -> str:
    """Of a reply, what it says; redis-py takes the word off that it knows."""
    return " ".join(filter(None, ("says:", error.status_code, str(error))))


class MasterConnection(Connection):
    """One to the master. master: shared by all connections of a process that go there."""

    def __init__(self, *, master: Master, **options: Any) -> None:
        self.master, self.term = master, 0
        super().__init__(**options)  # type: ignore[no-untyped-call]

    def connect(self) -> None:
        """Also asked of an idle connection, before it is used."""
        self._leave_an_earlier_master()
        super().connect()  # type: ignore[no-untyped-call]

    def can_read(self, timeout: float = 0) -> bool:
        """Also asked of a subscription, again and again: a master that hangs ends none."""
        self._leave_an_earlier_master()
        return super().can_read(timeout)

    def _leave_an_earlier_master(self) -> None:
        if self._sock is not None and self.term != self.master.term:
            self.disconnect()

    def _connect(self) -> Any:
        (self.host, self.port), self.term = self.master.find()
        try:
            return super()._connect()  # type: ignore[no-untyped-call]
        except OSError:
            self.master.doubt(self.term, is_other=False)
            raise

    def on_connect_check_health(self, check_health: bool = True) -> None:
        """Who greets us as a replica is not the one."""
        super().on_connect_check_health(check_health)
        greeting: Any = self.handshake_metadata or {}
        role = greeting.get(b"role")
        if role not in (None, b"master"):
            raise self.wrong(f"is a {role.decode()}")

    def read_response(self, *arguments: Any, **options: Any) -> Any:
        try:
            return super().read_response(*arguments, **options)
        except ResponseError as error:
            if not is_elsewhere(error):
                raise
            raise self.wrong(said(error)) from None

    def wrong(self, why: str) -> NotTheMaster:
        """This connection is over."""
        self.disconnect()  # type: ignore[no-untyped-call]
        self.master.doubt(self.term, is_other=True)
        return NotTheMaster(f"{self.host}:{self.port} {why}")


class MasterSSLConnection(MasterConnection, SSLConnection):
    """The same by TLS."""


class AsyncMasterConnection(redis.asyncio.Connection):
    """The same for asyncio; who the master is is asked in a thread."""

    def __init__(self, *, master: Master, **options: Any) -> None:
        self.master, self.term = master, 0
        super().__init__(**options)

    @property
    def is_old(self) -> bool:
        """It leads to an earlier master."""
        return self.is_connected and self.term != self.master.term

    async def connect(self) -> None:
        """Also asked of an idle connection, before it is used: not each command has a key, for
        which an earlier master of a Cluster would refuse it."""
        if self.is_old:
            await self.disconnect(nowait=True)
        await super().connect()  # type: ignore[no-untyped-call]

    async def _connect(self) -> None:
        (self.host, self.port), self.term = await asyncio.to_thread(self.master.find)
        try:
            await super()._connect()  # type: ignore[no-untyped-call]
        except (OSError, TimeoutError):
            self.master.doubt(self.term, is_other=False)
            raise

    async def on_connect_check_health(self, check_health: bool = True) -> None:
        await super().on_connect_check_health(check_health)
        await self.send_command("HELLO", self.protocol, check_health=False)
        told: Any = await self.read_response()
        role = dict(zip(told[::2], told[1::2], strict=True)) if isinstance(told, list) else told
        if role.get(b"role") != b"master":
            raise await self.wrong(f"is a {role.get(b'role', b'?').decode()}")

    async def read_response(self, *arguments: Any, **options: Any) -> Any:
        try:
            return await super().read_response(*arguments, **options)
        except ResponseError as error:
            if not is_elsewhere(error):
                raise
            raise (await self.wrong(said(error))) from None

    async def wrong(self, why: str) -> NotTheMaster:
        """This connection is over."""
        await self.disconnect(nowait=True)
        self.master.doubt(self.term, is_other=True)
        return NotTheMaster(f"{self.host}:{self.port} {why}")


class AsyncMasterSSLConnection(AsyncMasterConnection, redis.asyncio.SSLConnection):
    """The same by TLS."""
