"""A small synchronous client that talks to the node through Redis alone, without the HTTP door.

    from ingest.client import Client

    client = Client()                                    # the node of this machine's settings
    request_id = client.enqueue(prompt="The capital of France is", sla="batch", max_tokens=8)
    for event in client.stream(request_id): print(event.text, end="")
    print(client.result(request_id, timeout_s=60).text)

A request is accepted when enqueue returned, and runs whether or not its client lives. Redis' own
exceptions (redis.exceptions.RedisError) go through; reads wait PATIENCE_S for a store that is away.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from secrets import token_hex
from typing import Any, Final, TypeVar, cast

import msgspec
from redis.exceptions import ConnectionError as StoreAway
from redis.exceptions import TimeoutError as StoreSilent

from ingest.jobs.past import LOST
from ingest.jobs.unread import known
from workers.promises import pressure
from workers.settings import settings
from workers.store import Promoted, Store
from workers.wire import END_ENTRY_ID, TERMINAL, EndEvent, Keys, Pressure, TokenEvent
from workers.wire_fields import end_of, parse_entry

BLOCK_S: Final = 10.0
PATIENCE_S: Final = 10.0
PRESSURE_S: Final = 1.0  # routers say each second how full the classes are
RETRY_S: Final = 0.3  # between two tries while the store is away
Result = TypeVar("Result")
LAST_TOKEN_ID: Final = f"0-{2**64 - 1}"  # behind every token, before the end


class Overloaded(Exception):
    """A class takes nothing more at present. retry_after_s: until it would, as predicted."""

    def __init__(self, sla: str, pressure: Pressure) -> None:
        self.retry_after_s = max(1.0, pressure.retry_ms / 1000)
        super().__init__(
            f"{sla}: {pressure.waiting} requests wait already; ask again in "
            f"{self.retry_after_s:.0f} s"
        )


class Client:
    """Safe to share between threads."""

    def __init__(self, url: str | None = None, prefix: str | None = None) -> None:
        """Without arguments: the store and prefix of lockstep.toml and LOCKSTEP_* variables."""
        classes = settings().classes.names
        keys = Keys(settings().key_prefix if prefix is None else prefix, classes)
        self.store = Store(
            settings().url if url is None else url, keys, replicas=settings().redis_replicas
        )
        self.reads = self.store.blocking(BLOCK_S)

    def enqueue(
        self,
        *,
        prompt: str | None = None,
        messages: list[dict[str, Any]] | None = None,
        sla: str = "standard",
        id: str | None = None,
        session_id: str | None = None,
        patience_s: float | None = None,
        **fields: Any,
    ) -> str:
        """Puts a request on its class' stream and gives its id.

        id      the idempotency key: a second request with it gets the first one's result; None:
                one is made up
        session_id
                the conversation that goes on: messages are what is new in it, or all of it
        patience_s
                how long to wait while the class takes nothing more; None: it is not asked, and
                what is too much ends as failed, code "overloaded"
        fields  whatever else a request may hold: max_tokens, temperature, session_mode, ...

        What is wrong with a request is not raised here: it ends as failed, with the reason.
        Raises ValueError for a class that does not exist, Overloaded when patience has an end,
        NotReplicated (store_client.py) when too few replicas have it: ask again by the same id.
        """
        classes = self.store.keys.classes
        if sla not in classes:
            raise ValueError(f"sla: must be one of {', '.join(classes)}, got {sla!r}")
        if patience_s is not None:
            self.wait_for_room(sla, patience_s)
        request_id = f"req-{token_hex(10)}" if id is None else id
        asked = {"prompt": prompt, "messages": messages, "session_id": session_id}
        body = {"v": 1, "id": request_id, **asked, **fields}
        given = {name: value for name, value in body.items() if value is not None}
        packed = msgspec.msgpack.encode(given)
        with self.store.replicated() as client:
            client.xadd(self.store.keys.requests(sla), {"m": packed})
        return request_id

    def job(self, request_id: str) -> dict[str, Any] | None:
        """What is known of a request; None: nothing, also of an id that only its message holds."""
        return known(self.store, request_id)

    def result(self, request_id: str, timeout_s: float | None = None) -> EndEvent:
        """Waits for the end; its text is the whole text. Raises TimeoutError."""
        for _ in self._entries(request_id, LAST_TOKEN_ID, timeout_s):
            pass
        return self._end(request_id)

    def stream(
        self, request_id: str, *, after: str = "0-0", timeout_s: float | None = None
    ) -> Iterator[TokenEvent | EndEvent]:
        """Tokens as they come, then the end. Raises TimeoutError when nothing comes for timeout_s.

        after  entry id behind which to begin: 0-N has token N - 1
        """
        for entry_id, fields in self._entries(request_id, after, timeout_s):
            yield parse_entry(entry_id, fields)
            after = entry_id
        if after != END_ENTRY_ID:  # its stream has expired already
            yield self._end(request_id)

    def cancel(self, request_id: str, *, unseen: bool = False) -> str:
        """Gives "cancelled" (it waited), "cancelling" (its pool was told), "ended" or "unknown".

        unseen: for whoever has just sent it by XADD. An id that nobody has read yet is taken, and a
        request of that id will not run.
        """
        return self.store.cancel(request_id, unseen=unseen)

    def pressure(self, sla: str) -> Pressure | None:
        """How full a class is: its producers do well to wait while it refuses. None: not known."""
        return pressure(self.store, sla)

    def wait_for_room(self, sla: str, patience_s: float) -> None:
        """Waits while the class takes nothing more. Raises Overloaded after patience_s."""
        end = time.monotonic() + patience_s
        while (told := pressure(self.store, sla)) is not None and told.waiting >= told.most:
            left_s = end - time.monotonic()
            if left_s <= 0:
                raise Overloaded(sla, told)
            time.sleep(min(left_s, PRESSURE_S))

    def promote(self, request_id: str, sla: str) -> Promoted:
        """Gives a request another class, while it waits or runs. Raises ValueError for no class."""
        return self.store.promote(request_id, sla)

    def _entries(
        self, request_id: str, after: str, timeout_s: float | None
    ) -> Iterator[tuple[str, Mapping[bytes, bytes]]]:
        """Entries behind `after` up to the end; timeout_s counts from the last one."""
        key, was_known = self.store.keys.tokens(request_id), False
        heard = time.monotonic()
        while after != END_ENTRY_ID:
            left_s = BLOCK_S if timeout_s is None else timeout_s - (time.monotonic() - heard)
            status = self._status(request_id)  # looked at before the read: nothing comes after it
            is_over = status in TERMINAL or (status is None and was_known)  # or it is lost
            was_known = was_known or status is not None
            entries = self._read(key, after, 0.0 if is_over else min(left_s, BLOCK_S))
            for raw_id, fields in entries:
                after, heard = raw_id.decode(), time.monotonic()
                yield after, fields
            if not entries and is_over:
                return
            if not entries and timeout_s is not None and time.monotonic() - heard >= timeout_s:
                raise TimeoutError(f"{request_id}: nothing for {timeout_s} s")

    def _status(self, request_id: str) -> str | None:
        """None: there is no record of it, or not yet."""
        key = self.store.keys.job(request_id)
        status = patiently(lambda: self.store.redis.hget(key, "status"))
        return None if status is None else cast(bytes, status).decode()

    def _end(self, request_id: str) -> EndEvent:
        """Of one that has ended; one without a record is lost."""
        job = patiently(lambda: self.store.job(request_id))
        return LOST if job is None else end_of(job)

    def _read(
        self, key: str, after: str, block_s: float
    ) -> list[tuple[bytes, Mapping[bytes, bytes]]]:
        """One blocking read."""
        block_ms = max(1, int(block_s * 1000))
        reply: Any = patiently(lambda: self.reads.xread({key: after}, block=block_ms))
        return cast(Any, next(iter(reply.values()))[0]) if reply else []


def patiently(read: Callable[[], Result]) -> Result:
    """What is read, asked again for PATIENCE_S while the store is away."""
    begin = time.monotonic()
    while True:
        try:
            return read()
        except (StoreAway, StoreSilent):
            if time.monotonic() - begin > PATIENCE_S:
                raise
            time.sleep(RETRY_S)
