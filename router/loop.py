"""The router's loop: see what waits, read as much as the pools have room for, admit, place.

    waiting ──room_of──► consumer.read ──admit──► turns ──► place ──dispatch──► queue of a pool
                                               │       │ ▲
                                               refuse  │ └── asked again when something changed
                                                       └───► held: no pool has room for it yet

    in a queue, or running ──replan──► Store.move: another pool goes on

A held message stays pending in its stream: if the router dies, it is read again. Only a few of a
class are held (reading.py), and those of one class never keep others from being read. While no pool
is ready nothing is read.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from router.admit import Door, Reject, admit, reject_entry
from router.consumer import Consumer, Entry
from router.dispatch import dispatch, expire, now_ms, refuse, turn_away
from router.entry import read_entry
from router.forecast import rank_of
from router.overload import Overload
from router.placement import Plan, place
from router.pools import PoolView, Wanted, max_sequence_tokens, wanted_of
from router.reading import room_of
from router.refusal import Refused
from router.replan import replan
from router.sight import Sight
from router.stranded import Stranded
from router.turns import Turns
from workers.address import Networks
from workers.log import logger
from workers.promises import tell_promises
from workers.sla import SlaTable
from workers.store import RateLimited, Store
from workers.text.text_model import TextModel
from workers.wire import Request

ALIVE_EVERY_S: Final = 1.0
ALIVE_TTL_S: Final = 5
HOUSEKEEPING_EVERY_S: Final = 5.0
REPLAN_EVERY_S: Final = 1.0
PRESS_EVERY_S: Final = 1.0
READ_ATTEMPTS: Final = 2  # times max_attempts: then a poison message is not even decoded
FULL_PAUSE_S: Final = 0.05  # until the pools may have room again
CLASSES: Final = SlaTable()
MAX_QUEUE: Final = 10_000
LATER_MOST: Final = 256

log = logger("router")


@dataclass(frozen=True, slots=True)
class Held:
    """A request that is admitted and not placed.   home: the pool of its session's last request"""

    entry: Entry
    request: Request
    wanted: Wanted
    home: str | None


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
        max_queue: int = MAX_QUEUE,
        stop_asked: Callable[[], bool] = lambda: False,
        prefetch: Callable[[str, str], object] = lambda tenant, session_id: None,
    ) -> None:
        """prefetch: told of each session whose files will be wanted soon; never waits.

        max_queue: requests that may wait in a class that does not say how many
        """
        self.store = store
        self.consumer = Consumer(store, name)
        self.text = text
        self.allow = allow
        self.table = table
        self.turns = Turns(table)
        self.sight = Sight(store, text.name)
        self.overload = Overload(store, table, allow, max_queue)
        self.stranded = Stranded()
        self.held: list[Held] = []
        self.later: list[Entry] = []  # too large for the pools that are ready, while one loads
        self.stop_asked = stop_asked
        self.prefetch = prefetch
        self.num_handled = 0
        self._seen_by_held: tuple[PoolView, ...] = ()
        self._alive_at = self._replan_at = float("-inf")
        self._housekeeping_at = time.monotonic()
        self._pressed_at = float("-inf")

    def join(self) -> None:
        """At the start, and again after the store was away: the groups, and what was left over."""
        self.held, self.later = [], []
        self.consumer.join()
        tell_promises(self.store)
        self.say_alive()
        self.sight.forget()
        self.handle(self.consumer.own_pending())

    def turn(self) -> float | None:
        """One round. Gives seconds to pause, or None: the bell may be waited for."""
        self.say_alive()
        self.sight.forget()
        self.replan()
        self.place_held()
        self.take_later()
        self.take_over()
        waiting = self.consumer.waiting()
        self.press(waiting)
        if not any(waiting.values()):
            return None
        room = self.room(waiting)
        entries = [e for sla, count in room.items() if count for e in self.read(sla, count)]
        self.handle(entries)
        if entries:
            return 0.0
        return FULL_PAUSE_S if self.held or not any(room.values()) else None

    def room(self, waiting: Mapping[str, int]) -> dict[str, int]:
        """How many of each class to read: what waits, as far as a pool's queue has room for it."""
        held = Counter(one.wanted.sla for one in self.held)
        return room_of(waiting, held, self.sight.views(), self.table)

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
        self.store.expire_late()
        for entry in [*(held.entry for held in self.held), *self.later]:
            self.consumer.keep(entry)

    def press(self, waiting: Mapping[str, int]) -> None:
        """Each second producers are told how full the classes are; what is too much is ended."""
        now = time.monotonic()
        if now - self._pressed_at >= PRESS_EVERY_S:
            self._pressed_at = now
            self.overload.tell(self.sight.views(), now_ms(), waiting)

    def take_over(self) -> None:
        """What other routers left, or this one under another name; the streams are kept."""
        now = time.monotonic()
        if now - self._housekeeping_at < HOUSEKEEPING_EVERY_S:
            return
        self._housekeeping_at = now
        self.consumer.renew()
        tell_promises(self.store)
        self.handle(self.consumer.abandoned(int(self.store.lease_s * 1000)))

    def handle(self, entries: Iterable[Entry]) -> None:
        """Places each message; what is left when we are asked to stop stays pending."""
        for entry in entries:
            if self.stop_asked():
                return
            self.take(entry)
            self.num_handled += 1
            self.say_alive()
        self.place_held()

    def take(self, entry: Entry) -> None:
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
        self.take_request(entry, fields, plain)

    def take_request(self, entry: Entry, fields: Mapping[str, Any], plain: bool) -> None:
        held_tokens = max_sequence_tokens(self.sight.loads())
        door = Door(self.text, now_ms(), self.allow, held_tokens, self.table.names)
        request = admit(fields, door, sla=entry.sla, entry_id=entry.arrived, plain=plain)
        request_id = request.request_id if isinstance(request, Reject) else request.id
        if self.holds(request_id):
            self.place_held()
        if self.holds(request_id):
            if not self.is_the_doors(entry, request_id):
                self.consumer.let_go(entry)  # the first one of an id stands
                return
            self.drop(request_id)
        if isinstance(request, Reject):
            is_too_large = request.code == "too_large" or request.field == "max_tokens"
            if is_too_large and self.may_be_larger(len(self.later)):
                self.later.append(entry)
            else:
                refuse(self.store, entry, request)
            return
        session = self.store.session(request.session) if request.session else {}
        wanted = wanted_of(request, session)
        self.overload.saw(wanted)
        home = session.get("pool") if request.session else None
        self.held.append(Held(entry, request, wanted, home))
        self._seen_by_held = ()

    def may_be_larger(self, num_later: int = 0) -> bool:
        """Whether a pool that loads may hold what the ready ones cannot: then it is not refused."""
        return self.sight.is_loading() and num_later < LATER_MOST

    def take_later(self) -> None:
        """What only a loading pool may hold, once that is ready or gone."""
        if self.later and not self.sight.is_loading():
            entries, self.later = self.later, []
            self.handle(entries)

    def holds(self, request_id: str | None) -> bool:
        return any(held.request.id == request_id for held in self.held)

    def is_the_doors(self, entry: Entry, request_id: str | None) -> bool:
        """Whether the HTTP door took its request as this message, or it was promoted to be it: what
        is held under that id came otherwise, or is out of its stream already."""
        assert request_id is not None, "what is held has an id"
        known = self.store.redis.hget(self.store.keys.job(request_id), "entry")
        return known == entry.entry_id.encode()

    def drop(self, request_id: str | None) -> None:
        """What is held under this id is no request any more."""
        for held in [held for held in self.held if held.request.id == request_id]:
            self.consumer.let_go(held.entry)
            self.held.remove(held)

    def place_held(self) -> None:
        """Those that wait here take turns, unless nothing has changed since they last did."""
        if not self.held:
            return
        views = self.sight.views()
        if views == self._seen_by_held:
            self.drop_expired()
            return
        self._seen_by_held = views
        again, self.held = sorted(self.held, key=lambda h: rank_of(h.wanted, self.table)), []
        lines = {sla: [h for h in again if h.wanted.sla == sla] for sla in self.table.names}
        iterators = {sla: iter(line) for sla, line in lines.items()}
        for sla in self.turns.order({sla: len(line) for sla, line in lines.items()}):
            held = next(iterators[sla])
            if self.place(held):
                self.turns.served(sla)
            else:
                self.held.append(held)

    def drop_expired(self) -> None:
        again, self.held = self.held, []
        for held in again:
            if is_expired(held.request):
                expire(self.store, held.entry, held.request)
            else:
                self.held.append(held)

    def place(self, held: Held) -> bool:
        """One request to where its plan says.   False: it is still here."""
        entry, request = held.entry, held.request
        if is_expired(request):
            expire(self.store, entry, request)
            return True
        plan = place(held.wanted, held.home, self.sight.views(), self.table, now_ms())
        too_large = plan.kind == "refuse" and plan.field == "max_tokens"
        if plan.kind == "wait" or (too_large and self.may_be_larger()):
            return False
        if plan.kind == "refuse":
            code = "too_large" if too_large else "impossible_deadline"
            self.refuse(entry, Refused(plan.field, plan.reason, code), fields_of(entry))
        else:
            self.dispatch(held, plan)
        return True

    def dispatch(self, held: Held, plan: Plan) -> None:
        """Into its queue, unless its tenant has had what it may ask for."""
        request = held.request
        try:
            outcome = dispatch(self.store, held.entry, request, plan)
        except RateLimited as limited:
            turn_away(self.store, held.entry, request, limited.wait_ms)
            return
        if outcome == "routed":
            self.sight.queued(held.wanted, plan.pool, plan.then)
        if outcome in ("routed", "waits") and request.session_id is not None:
            self.prefetch(request.tenant, request.session_id)

    def replan(self) -> None:
        """What is in the pools is placed anew, where that is worth it. One router a second does."""
        now = time.monotonic()
        if now - self._replan_at < REPLAN_EVERY_S:
            return
        self._replan_at = now
        keys, every_ms = self.store.keys, int(REPLAN_EVERY_S * 900)
        if not self.store.redis.exists(keys.active):
            return  # nothing is in a queue, nothing runs
        if not self.store.redis.set(keys.replanned, self.consumer.name, px=every_ms, nx=True):
            return
        for view in self.sight.views():
            if not view.is_ready:  # nobody of its own looks after what its workers left
                self.store.reap(view.name)
        for request_id, pool, reason in self.stranded.late(
            self.sight.views(), self.sight.movable(), now
        ):
            if self.store.give_up(request_id, pool, reason):
                log.warning("given up", id=request_id, reason=reason)
        for move in replan(self.sight.views(), self.sight.movable(), self.table, now_ms()):
            outcome = self.store.move(move.request_id, move.to_pool, move.reason)
            log.info(outcome, id=move.request_id, to=move.to_pool, reason=move.reason)

    def refuse(self, entry: Entry, refused: Refused, fields: Mapping[str, Any]) -> None:
        """Refuses a message that is not to be admitted, whatever it asks for."""
        reject = reject_entry(
            refused, sla=entry.sla, entry_id=entry.entry_id, fields=fields, allow=self.allow
        )
        refuse(self.store, entry, reject)


def fields_of(entry: Entry) -> Mapping[str, Any]:
    """What an admitted message says."""
    fields, _ = read_entry(entry.fields)
    return fields


def is_expired(request: Request) -> bool:
    return request.deadline_ms is not None and request.deadline_ms <= now_ms()


def poison(entry: Entry) -> Refused:
    """Why a message is not tried again."""
    reason = f"whoever read it ended, {entry.deliveries - 1} times in a row"
    return Refused("request", reason, "poison")
