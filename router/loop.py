"""The router's loop: see what waits, read as much as the pools have room for, admit, place.

    waiting ──room_of──► consumer.read ──► Taker.take ──► Placer.place_all ──► queue of a pool
                                              │  admit       │ ▲
                                              refuse         └─┘ held: no pool has room for it yet

    in a queue, or running ──Replanner.look──► Store.move: another pool goes on

A message that is held stays pending in its stream: if the router dies, it is read again. Only a few
of a class are held (reading.py), and those of one class never keep others from being read. While no
pool is ready nothing is read.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from router.adopting import Adopter
from router.consumer import Consumer, Entry
from router.homing import Homes
from router.membership import Membership
from router.overload import Overload
from router.placing import Held, Placer
from router.pressure import of_share
from router.reading import room_of
from router.replanning import Replanner
from router.sight import Sight
from router.suiting import Suits
from router.taking import Taker
from router.typical import Typical
from workers.address import Networks
from workers.clock import now_ms
from workers.log import logger
from workers.promises import tell_promises
from workers.sla import SlaTable
from workers.store import Store
from workers.text.text_model import TextModel

ALIVE_EVERY_S: Final = 1.0
ALIVE_TTL_S: Final = 5
HOUSEKEEPING_EVERY_S: Final = 5.0
PRESS_EVERY_S: Final = 1.0
FULL_FIRST_S: Final = 0.003  # until the pools may have room again: short answers end that soon
FULL_PAUSE_S: Final = 0.05  # the same at most: it doubles while they have none
CLASSES: Final = SlaTable()
MAX_QUEUE: Final = 10_000

log = logger("router")


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
        fleet: Membership | None = None,
    ) -> None:
        """prefetch: told of each session whose files will be wanted soon; never waits.

        fleet: None: the node is alone on its Redis

        max_queue: requests that may wait in a class that does not say how many
        """
        self.store = store
        self.consumer = Consumer(store, name)
        self.table = table
        self.fleet = fleet or Membership(None)
        self.sight, self.homes = Sight(store, text.name), Homes(store, text.name, table)
        self.adopter = Adopter(store, self.sight, table, self.fleet)
        typical = Typical(table.names)
        self.overload = Overload(store, table, typical, allow, max_queue)
        self.suits = Suits(table, typical.next_one, self.consumer.oldest_s)
        self.replanner = Replanner(store, self.sight, table, name)
        self.placer = Placer(
            store,
            self.consumer,
            self.sight,
            table,
            homes=self.homes,
            allow=allow,
            prefetch=prefetch,
        )
        self.taker = Taker(
            store,
            self.consumer,
            self.sight,
            table,
            text=text,
            allow=allow,
            typical=typical,
            placer=self.placer,
        )
        self.stop_asked = stop_asked
        self.num_handled = 0
        self.full_s = FULL_FIRST_S
        self._alive_at = self._pressed_at = float("-inf")
        self._housekeeping_at = self._able_at = time.monotonic()

    @property
    def held(self) -> list[Held]:
        """What is admitted and not placed."""
        return self.placer.held

    def join(self) -> None:
        """At the start, and again after the store was away: the groups, and what was left over."""
        self.placer.held, self.taker.later = [], []
        self._able_at = time.monotonic()
        self.consumer.join()
        tell_promises(self.store)
        self.say_alive()
        self.forget()
        self.fleet.say(self.sight.views, self.sight.longest_here)
        if not self.fleet.refused:  # else the others take it up
            self.handle(self.consumer.own_pending())

    def forget(self) -> None:
        """What was seen of the pools is to be looked at again."""
        self.sight.forget()
        self.homes.forget()

    def turn(self) -> float | None:
        """One round. Gives seconds to pause, or None: the bell may be waited for."""
        self.say_alive()
        self.forget()
        self.fleet.say(self.sight.views, self.sight.longest_here)
        self.let_go()
        self.replanner.look()
        self.adopter.look()
        self.placer.place_all()
        self.handle(self.taker.taken_later())
        self.take_over()
        waiting = self.consumer.waiting()
        self.press(waiting)
        if not any(waiting.values()):
            return None
        room = self.room(waiting)
        entries = [e for sla, count in room.items() if count for e in self.read(sla, count)]
        self.handle(entries)
        if entries:
            self.full_s = FULL_FIRST_S
            return 0.0
        if not self.held and any(room.values()):
            return None
        pause_s, self.full_s = self.full_s, min(2 * self.full_s, FULL_PAUSE_S)
        return pause_s

    def is_able(self) -> bool:
        """Whether what waits in the streams may be this node's to do.

        In a fleet others do it while this one has no pool that is ready, or takes no part.
        """
        if not self.store.keys.node:
            return True
        return not self.fleet.refused and any(view.is_ready for view in self.sight.views())

    def let_go(self) -> None:
        """What a node holds that will not do it: it stays pending, and others find it abandoned."""
        now = time.monotonic()
        if self.is_able():
            self._able_at = now
        elif self.fleet.refused or now - self._able_at > self.store.lease_s:
            self.placer.held, self.taker.later = [], []

    def room(self, waiting: Mapping[str, int]) -> dict[str, int]:
        """How many of each class to read: what waits, as far as a pool's queue has room for it.

        Of a fleet's streams it takes its share at a time: the others are at it, too.
        """
        views = self.sight.views()
        if self.store.keys.node:
            suit = () if self.fleet.refused else self.suits.all(views, waiting)
            mine = of_share(waiting, self.fleet.share)
            waiting = {sla: mine[sla] if sla in suit else 0 for sla in waiting}
        return room_of(waiting, self.placer.by_class(), views, self.table)

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
        for entry in [*(held.entry for held in self.held), *self.taker.later]:
            self.consumer.keep(entry)

    def press(self, waiting: Mapping[str, int]) -> None:
        """Each second producers are told how full the classes are; what is too much is ended."""
        now = time.monotonic()
        if now - self._pressed_at >= PRESS_EVERY_S and not self.fleet.refused:
            self._pressed_at = now
            views = self.sight.views()
            mine = self.suits.all(views, waiting) if self.store.keys.node else self.table.names
            self.overload.tell(views, now_ms(), waiting, self.fleet.share, mine)

    def await_messages(self) -> None:
        """Until some come, a second at most. In a fleet one router gets each, if it has room."""
        if not self.store.keys.node:
            self.consumer.ring()
        elif classes := self.classes_to_wait_for():
            self.handle(self.consumer.take(classes))
        else:
            time.sleep(FULL_PAUSE_S)

    def classes_to_wait_for(self) -> list[str]:
        """Those of whose messages one more would be served here, and as promised."""
        views, held = self.sight.views(), self.placer.by_class()
        suit = () if self.fleet.refused else self.suits.quick(views)
        one_more = {sla: held.get(sla, 0) + 1 for sla in suit}
        room = room_of(one_more, held, views, self.table)
        return [sla for sla, count in room.items() if count]

    def take_over(self) -> None:
        """What other routers left, or this one under another name; the streams are kept."""
        now = time.monotonic()
        if now - self._housekeeping_at < HOUSEKEEPING_EVERY_S:
            return
        self._housekeeping_at = now
        self.consumer.renew()
        tell_promises(self.store)
        if self.is_able():
            self.handle(self.consumer.abandoned(int(self.store.lease_s * 1000)))

    def handle(self, entries: Iterable[Entry]) -> None:
        """Places each message; what is left when we are asked to stop stays pending."""
        for entry in entries:
            if self.stop_asked():
                return
            self.taker.take(entry)
            self.num_handled += 1
            self.say_alive()
        self.placer.place_all()
