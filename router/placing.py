"""What is admitted and has no pool yet takes turns: each goes where its plan says, or stays held.

    hold ──► held ──place──► routings ──one script──► queues of the pools
               ▲      └── no pool has room for it: asked again when something has changed

A held message stays pending in its stream: if the router dies, it is read again. All that is placed
in one go is handed over by one call; the pools are looked at again when one of it went otherwise.
"""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from router.consumer import Consumer, Entry
from router.dispatch import dispatch, expire, refuse_message
from router.entry import read_entry
from router.forecast import rank_of
from router.homing import Homes, is_outgrown
from router.placement import Plan, place
from router.pools import PoolView, Wanted
from router.refusal import Refused
from router.sight import Sight
from router.turns import Turns
from workers.address import Networks
from workers.clock import now_ms
from workers.sla import SlaTable
from workers.store import Store
from workers.wire import Request

PLACED: Final = ("routed", "waits")
ABROAD_S: Final = 0.5  # of a fleet: until it is asked again whether another node has room now


@dataclass(frozen=True, slots=True)
class Held:
    """A request that is admitted and not placed.   home: the pool of its session's last request"""

    entry: Entry
    request: Request
    wanted: Wanted
    home: str | None


class Placer:
    """One router's.   prefetch: told of each session whose files will be wanted; never waits"""

    def __init__(
        self,
        store: Store,
        consumer: Consumer,
        sight: Sight,
        table: SlaTable,
        *,
        homes: Homes,
        allow: Networks,
        prefetch: Callable[[str, str], object],
    ) -> None:
        self.store, self.consumer, self.sight, self.table = store, consumer, sight, table
        self.homes, self.allow, self.prefetch = homes, allow, prefetch
        self.turns = Turns(table)
        self.held: list[Held] = []
        self._seen: tuple[PoolView, ...] = ()  # by those that are held
        self._asked_at = float("-inf")

    def hold(self, held: Held) -> None:
        self.held.append(held)
        self._seen = ()

    def holds(self, request_id: str | None) -> bool:
        return any(held.request.id == request_id for held in self.held)

    def has(self, entry: Entry) -> bool:
        """Whether this very message is held."""
        place = (entry.sla, entry.entry_id)
        return any((held.entry.sla, held.entry.entry_id) == place for held in self.held)

    def by_class(self) -> dict[str, int]:
        """How many are held of each class."""
        return Counter(held.wanted.sla for held in self.held)

    def drop(self, request_id: str | None) -> None:
        """What is held under this id is no request any more."""
        for held in [held for held in self.held if held.request.id == request_id]:
            self.consumer.let_go(held.entry)
            self.held.remove(held)

    def place_all(self) -> None:
        """Those that are held take turns, unless nothing has changed since they last did."""
        if not self.held:
            return
        views = self.sight.views()
        if views == self._seen and not self.may_fit_abroad():
            self.drop_expired()
            return
        self._seen, self._asked_at = views, time.monotonic()
        again, self.held = sorted(self.held, key=lambda h: rank_of(h.wanted, self.table)), []
        lines = {sla: [h for h in again if h.wanted.sla == sla] for sla in self.table.names}
        iterators = {sla: iter(line) for sla, line in lines.items()}
        placed: list[tuple[Held, Plan]] = []
        for sla in self.turns.order({sla: len(line) for sla, line in lines.items()}):
            held = next(iterators[sla])
            if self.place(held, placed):
                self.turns.served(sla)
            else:
                self.held.append(held)
        self.hand_over(placed)

    def may_fit_abroad(self) -> bool:
        """Whether another node of a fleet may have changed since they last took turns."""
        return bool(self.store.keys.node) and time.monotonic() - self._asked_at >= ABROAD_S

    def drop_expired(self) -> None:
        again, self.held = self.held, []
        for held in again:
            if is_expired(held.request):
                expire(self.store, held.entry, held.request)
            else:
                self.held.append(held)

    def place(self, held: Held, placed: list[tuple[Held, Plan]]) -> bool:
        """Onto `placed`, if its plan says so, or to its end.   False: it is still here."""
        entry, request = held.entry, held.request
        if is_expired(request):
            expire(self.store, entry, request)
            return True
        plan = self.plan(held)
        too_large = plan.kind == "refuse" and plan.field == "max_tokens"
        if plan.kind == "wait" or (too_large and self.sight.is_loading()):
            return False
        if plan.kind == "refuse":
            code = "too_large" if too_large else "impossible_deadline"
            fields, _ = read_entry(entry.fields)
            refused = Refused(plan.field, plan.reason, code)
            refuse_message(self.store, self.allow, entry, refused, fields)
        else:
            placed.append((held, plan))
            if self.is_ours(plan.pool):
                self.sight.queued(held.wanted, plan.pool, plan.then)
            else:
                self.homes.queued(held.wanted, plan.pool, plan)
        return True

    def plan(self, held: Held) -> Plan:
        """Here, or where its session is at home."""
        wanted, home, now = held.wanted, held.home, now_ms()
        if home is None or not self.homes.is_elsewhere(home):
            plan = place(wanted, home, self.sight.views(), self.table, now)
        else:
            anew = replace(wanted, kept_tokens=0)  # what its session has computed is not here
            plan = place(anew, None, self.sight.views(), self.table, now)
            if self.homes.takes_part(home):
                plan = self.homes.plan(wanted, home, plan, now)
        larger = self.homes.larger(wanted, now) if self.is_too_large(wanted, plan) else None
        return larger or plan

    def is_too_large(self, wanted: Wanted, plan: Plan) -> bool:
        """Whether no pool of this node of a fleet holds it, or its session: another one may."""
        if not self.store.keys.node:
            return False
        if plan.kind == "refuse":
            return plan.field == "max_tokens"
        return self.is_ours(plan.pool) and is_outgrown(wanted, self.sight.views())

    def is_ours(self, pool: str) -> bool:
        return pool in self.store.keys.own_pools

    def hand_over(self, placed: list[tuple[Held, Plan]]) -> None:
        """Into the queues, all at once, but those whose tenant has had what it may ask for."""
        if not placed:
            return
        outcomes = dispatch(self.store, [(held.entry, held.request, plan) for held, plan in placed])
        for (held, plan), outcome in zip(placed, outcomes, strict=True):
            request, is_ours = held.request, self.is_ours(plan.pool)
            if outcome in PLACED and is_ours and request.session_id is not None:
                self.prefetch(request.tenant, request.session_id)
        if any(outcome != "routed" for outcome in outcomes):
            self.sight.forget()  # it was counted as queued
            self.homes.forget()


def is_expired(request: Request) -> bool:
    return request.deadline_ms is not None and request.deadline_ms <= now_ms()
