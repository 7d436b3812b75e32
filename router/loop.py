"""The router's loop: see what waits, read as much as the pools have room for, admit, place.

    waiting ──turns.share──► consumer.read ──admit──► route ──dispatch──► queue of a pool
                                               │         │
                                               refuse    no pool is ready: held, and tried again

A held message stays pending in its stream: if the router dies, it is read again. While anything is
held, or the pools are full, nothing new is read.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from router.admit import Door, Reject, admit, reject_entry
from router.consumer import Consumer, Entry
from router.dispatch import dispatch, expire, refuse
from router.entry import read_entry
from router.refusal import Refused
from router.route import Route, max_sequence_tokens, route
from router.turns import Turns
from workers.address import Networks
from workers.sla import SlaTable
from workers.store import Store
from workers.text.text_model import TextModel
from workers.wire import POOLS, PoolLoad, Request

ALIVE_EVERY_S: Final = 1.0
ALIVE_TTL_S: Final = 5
HOUSEKEEPING_EVERY_S: Final = 5.0
LOADS_AGE_S: Final = 0.25  # how old a look at the pools may be
READ_ATTEMPTS: Final = 2  # times max_attempts: then a poison message is not even decoded
FULL_PAUSE_S: Final = 0.05  # until the pools may have room again
CLASSES: Final = SlaTable()
BATCHES_QUEUED: Final = 2  # in RQ's queue; all else waits in the streams, where classes count


class Router:
    """One router process. turn() does what there is to do, and says how to wait for more."""

    def __init__(
        self,
        store: Store,
        name: str,
        text: TextModel,
        allow: Networks,
        *,
        table: SlaTable = CLASSES,
        stop_asked: Callable[[], bool] = lambda: False,
        prefetch: Callable[[str, str], object] = lambda tenant, session_id: None,
    ) -> None:
        """prefetch: told of each session whose files will be wanted soon; never waits."""
        self.store = store
        self.consumer = Consumer(store, name)
        self.text = text
        self.allow = allow
        self.table = table
        self.turns = Turns(table)
        self.held: list[Entry] = []
        self.stop_asked = stop_asked
        self.prefetch = prefetch
        self.num_handled = 0
        self._loads: list[PoolLoad] = []
        self._loads_at = self._alive_at = float("-inf")
        self._housekeeping_at = time.monotonic()

    def join(self) -> None:
        """At the start, and again after the store was away: the groups, and what was left over."""
        self.held = []
        self.consumer.join()
        self.say_alive()
        self.handle(self.consumer.own_pending())

    def turn(self) -> float | None:
        """One round. Gives seconds to pause, or None: the bell may be waited for."""
        self.say_alive()
        again, self.held = self.held, []
        self.handle(again)
        self.take_over()
        waiting = self.consumer.waiting()
        if not any(waiting.values()):
            return None
        room = self.room()
        if self.held or room <= 0:
            return FULL_PAUSE_S
        shares = self.turns.share(room, waiting)
        entries = [e for sla, count in shares.items() if count for e in self.read(sla, count)]
        self.handle(entries)
        return 0.0 if entries else None

    def read(self, sla: str, count: int) -> list[Entry]:
        return [] if self.stop_asked() else self.consumer.read(sla, count)

    def say_alive(self) -> None:
        """Our own key, renewed each second: without one /readyz fails."""
        now = time.monotonic()
        if now - self._alive_at < ALIVE_EVERY_S:
            return
        self._alive_at = now
        key = self.store.keys.router(self.consumer.name)
        self.store.redis.set(key, self.num_handled, ex=ALIVE_TTL_S)
        for entry in self.held:
            self.consumer.keep(entry)

    def take_over(self) -> None:
        """What other routers left, or this one under another name; the streams are kept."""
        now = time.monotonic()
        if now - self._housekeeping_at < HOUSEKEEPING_EVERY_S:
            return
        self._housekeeping_at = now
        self.consumer.renew()
        self.handle(self.consumer.abandoned(int(self.store.lease_s * 1000)))

    def handle(self, entries: Iterable[Entry]) -> None:
        """Places each message; what is left when we are asked to stop stays pending."""
        for entry in entries:
            if self.stop_asked():
                return
            self.place(entry)
            self.num_handled += 1
            self.say_alive()

    def place(self, entry: Entry) -> None:
        """Routed, refused, expired, or held."""
        if entry.deliveries > READ_ATTEMPTS * self.store.max_attempts:
            self.refuse(entry, poison(entry), {})  # to look into it may be what ends us
            return
        try:
            fields, plain = read_entry(entry.fields)
        except Refused as refused:
            self.refuse(entry, refused, {})
            return
        if entry.deliveries > self.store.max_attempts:
            self.refuse(entry, poison(entry), fields)
            return
        self.place_request(entry, fields, plain)

    def place_request(self, entry: Entry, fields: Mapping[str, Any], plain: bool) -> None:
        loads, now_ms = self.loads(), time.time_ns() // 1_000_000
        door = Door(self.text, now_ms, self.allow, max_sequence_tokens(loads), self.table.names)
        request = admit(fields, door, sla=entry.sla, entry_id=entry.arrived, plain=plain)
        if isinstance(request, Reject):
            refuse(self.store, entry, request)
        elif request.deadline_ms is not None and request.deadline_ms <= now_ms:
            expire(self.store, entry, request)
        elif isinstance(placed := route(request, loads, self.home(request)), Route):
            if dispatch(self.store, entry, request, placed) and request.session_id is not None:
                self.prefetch(request.tenant, request.session_id)
        elif placed.forever:
            self.refuse(entry, Refused("max_tokens", placed.reason, "too_large"), fields)
        else:
            self.held.append(entry)

    def home(self, request: Request) -> str | None:
        """The pool that ran the session's last request."""
        return self.store.session(request.session).get("pool") if request.session else None

    def refuse(self, entry: Entry, refused: Refused, fields: Mapping[str, Any]) -> None:
        """Refuses a message that is not to be admitted, whatever it asks for."""
        reject = reject_entry(
            refused, sla=entry.sla, entry_id=entry.entry_id, fields=fields, allow=self.allow
        )
        refuse(self.store, entry, reject)

    def loads(self) -> list[PoolLoad]:
        """What the pools said of themselves, LOADS_AGE_S ago at most."""
        now = time.monotonic()
        if now - self._loads_at > LOADS_AGE_S:
            self._loads, self._loads_at = self.store.loads(), now
        return self._loads

    def room(self) -> int:
        """How many requests may still go into the queue of the pool that route() prefers."""
        ready = [load for load in self.loads() if load.state == "ready"]
        pool = next((pool for pool in POOLS if any(load.pool == pool for load in ready)), None)
        if pool is None:
            return 0
        capacity = sum(max(load.capacity, 1) for load in ready if load.pool == pool)
        queued = int(self.store.redis.llen(self.store.keys.queue(pool)))
        return BATCHES_QUEUED * capacity - queued


def poison(entry: Entry) -> Refused:
    """Why a message is not tried again."""
    reason = f"whoever read it ended, {entry.deliveries - 1} times in a row"
    return Refused("request", reason, "poison")
