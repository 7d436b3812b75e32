"""Reads the request streams as one consumer of the group `router`: who else reads does not matter.

    XADD ──► stream ──read──► pending, ours ──route or refuse (one script)──► gone
                                   │  we die
                                   ├──own_pending──► ours again, when we come back under our name
                                   └──abandoned────► another router's, when nobody has touched it

A message is delivered at least once; the scripts that take it out of the stream work once. What was
delivered before is taken up one message at a time, so that a message which kills its reader does
not raise the delivery counts of its neighbours. The doorbell is a plain XREAD, which consumes
nothing: what the pools have no room for stays in the stream, unread.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from redis.exceptions import ResponseError

from workers.store import Store
from workers.wire import GROUP, KEEP_S

RING_BLOCK_S: Final = 1.0  # the router shows that it lives once a second
ABANDONED_PER_LOOK: Final = 16
ENTRY_ID: Final = re.compile(r"[0-9]{1,13}-[0-9]{1,20}")


@dataclass(frozen=True, slots=True)
class Entry:
    """A message of a request stream. deliveries: this one included."""

    sla: str
    entry_id: str
    fields: Mapping[bytes, bytes]
    deliveries: int = 1

    @property
    def arrived(self) -> str:
        """The entry that the request came as: another one, if it was promoted before it was read.

        Redis made that id (promote.lua); what a client writes there is held to its form.
        """
        told = self.fields.get(b"arrived", b"").decode(errors="replace")
        return told if ENTRY_ID.fullmatch(told) else self.entry_id


class Consumer:
    """One consumer. Its name outlives it: what it left is its own again."""

    def __init__(self, store: Store, name: str) -> None:
        self.store = store
        self.redis = store.redis
        self.name = name
        self.bell = store.blocking(RING_BLOCK_S)
        self.classes = store.keys.classes
        self.heard = dict.fromkeys(self.classes, "0-0")  # entries up to here have rung or were read

    def join(self) -> None:
        """Makes the group where there is none: from 0, so that nothing that waits is skipped."""
        for sla in self.classes:
            try:
                self.redis.xgroup_create(self.store.keys.requests(sla), GROUP, "0", mkstream=True)
            except ResponseError as error:
                if "BUSYGROUP" not in str(error):
                    raise
        self.heard = dict.fromkeys(self.classes, "0-0")
        self.renew()

    def renew(self) -> None:
        """Streams expire when no router lives for KEEP_S; a plain XADD does not see to it."""
        with self.redis.pipeline(transaction=False) as pipeline:
            for sla in self.classes:
                pipeline.expire(self.store.keys.requests(sla), KEEP_S)
            pipeline.execute()

    def waiting(self) -> dict[str, int]:
        """Messages in each stream, those included that some router holds."""
        with self.redis.pipeline(transaction=False) as pipeline:
            for sla in self.classes:
                pipeline.xlen(self.store.keys.requests(sla))
            return dict(zip(self.classes, pipeline.execute(), strict=True))

    def read(self, sla: str, count: int) -> list[Entry]:
        """Messages that no router has seen, count at most."""
        entries = self._read_group(sla, ">", count)
        if entries:
            self.heard[sla] = entries[-1].entry_id
        return entries

    def own_pending(self) -> Iterator[Entry]:
        """What this consumer had read before it died, one at a time."""
        for sla in self.classes:
            after = "0-0"
            while entries := self._read_group(sla, after, 1):
                after = entries[0].entry_id
                yield from self._counted(entries)

    def abandoned(self, idle_ms: int) -> Iterator[Entry]:
        """What nobody has touched for idle_ms, one at a time, and not all of it at once."""
        for sla in self.classes:
            key = self.store.keys.requests(sla)
            # XAUTOCLAIM looks at few in one go, and those may all be in good hands
            idle = self.redis.xpending_range(key, GROUP, "-", "+", ABANDONED_PER_LOOK, idle=idle_ms)
            for one in cast(list[Any], idle):
                reply = self.redis.xclaim(key, GROUP, self.name, idle_ms, [one["message_id"]])
                yield from self._counted(self._entries(sla, reply))

    def keep(self, entry: Entry) -> None:
        """Says that the message is in good hands: it is not abandoned, and has killed nobody."""
        key = self.store.keys.requests(entry.sla)
        self.redis.xclaim(key, GROUP, self.name, 0, [entry.entry_id], retrycount=1, justid=True)

    def let_go(self, entry: Entry) -> None:
        """The message is wanted no more."""
        key = self.store.keys.requests(entry.sla)
        self.redis.xack(key, GROUP, entry.entry_id)
        self.redis.xdel(key, entry.entry_id)

    def oldest_s(self, sla: str) -> float:
        """Since the oldest message came that no router has read; 0.0: there is none."""
        key = self.store.keys.requests(sla)
        groups = self.redis.xinfo_groups(key)
        ours = (g["last-delivered-id"] for g in groups if g["name"] == GROUP.encode())
        read = next(ours, b"0-0")
        unread = cast(list[Any], self.redis.xrange(key, min=f"({read.decode()}", count=1))
        if not unread:
            return 0.0
        seconds, micros = self.redis.time()
        return seconds + micros / 1e6 - int(unread[0][0].partition(b"-")[0]) / 1000

    def take(self, classes: Sequence[str]) -> list[Entry]:
        """One message of each of these classes; waits RING_BLOCK_S at most until there is one.

        Of many routers that wait so, one is woken for each message: in a fleet a doorbell that all
        hear would cost as many commands as there are nodes.
        """
        streams = {self.store.keys.requests(sla): ">" for sla in classes}
        block_ms = int(RING_BLOCK_S * 1000)
        told = self.bell.xreadgroup(GROUP, self.name, cast(Any, streams), count=1, block=block_ms)
        reply = cast(Any, told) or {}
        found: list[Entry] = []
        for key, entries in reply.items() if isinstance(reply, dict) else reply:
            found += self._entries(key.decode().rpartition(":")[2], entries)
        return found

    def ring(self) -> None:
        """Waits until a message comes that has not rung yet, RING_BLOCK_S at most."""
        streams = {self.store.keys.requests(sla): self.heard[sla] for sla in self.classes}
        block_ms = int(RING_BLOCK_S * 1000)
        reply = cast(Any, self.bell.xread(cast(Any, streams), count=1, block=block_ms)) or {}
        for key, entries in reply.items() if isinstance(reply, dict) else reply:
            sla = key.decode().rpartition(":")[2]
            for entry in self._entries(sla, entries):
                self.heard[sla] = entry.entry_id

    def _read_group(self, sla: str, after: str, count: int) -> list[Entry]:
        key = self.store.keys.requests(sla)
        reply = cast(Any, self.redis.xreadgroup(GROUP, self.name, {key: after}, count=count)) or {}
        streams = reply.values() if isinstance(reply, dict) else [pair[1] for pair in reply]
        return [entry for entries in streams for entry in self._entries(sla, entries)]

    def _entries(self, sla: str, reply: Any) -> list[Entry]:
        """RESP3 wraps a stream's entries in one more list."""
        pairs = reply[0] if reply and isinstance(reply[0], list) else reply
        return [Entry(sla, entry_id.decode(), fields or {}) for entry_id, fields in pairs]

    def _counted(self, entries: list[Entry]) -> Iterator[Entry]:
        """With their delivery counts; one whose message somebody deleted is let go."""
        for entry in entries:
            key = self.store.keys.requests(entry.sla)
            if not entry.fields:
                self.redis.xack(key, GROUP, entry.entry_id)
                continue
            found = cast(
                list[Any],
                self.redis.xpending_range(key, GROUP, entry.entry_id, entry.entry_id, 1),
            )
            deliveries = found[0]["times_delivered"] if found else 1
            yield Entry(entry.sla, entry.entry_id, entry.fields, deliveries)
