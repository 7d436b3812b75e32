"""A session's request goes home, to the node that has its files, as long as home promises in time.

    home: this node       placed among its pools, like any other
    home: another node    straight into its queue, if it has room and keeps the promise there;
                          else here, where the history comes from afar or is computed again

What other nodes look like is seen in the store, as our own pools are; a look serves for a while.
"""

from collections.abc import Sequence
from dataclasses import replace

from router.placement import Plan, place
from router.pools import PoolView, Wanted
from router.sight import Sight
from workers.fleet.names import node_of, pools_of
from workers.fleet.presence import who_holds
from workers.sla import SlaTable
from workers.store import Store

UNPLACED = ("wait", "refuse")


class Homes:
    """One router's view of the nodes where sessions are at home."""

    def __init__(self, store: Store, model: str, table: SlaTable) -> None:
        self.store, self.model, self.table = store, model, table
        self.sights: dict[str, Sight] = {}

    def forget(self) -> None:
        """A turn begins."""
        for sight in self.sights.values():
            sight.forget()

    def is_elsewhere(self, home: str | None) -> bool:
        """Whether that pool is another node's."""
        return home is not None and node_of(home) != self.store.keys.node

    def takes_part(self, home: str) -> bool:
        """Whether that pool's node is one whose answers are the fleet's; one without a name is."""
        node = node_of(home)
        return not node or self.store.redis.zscore(self.store.keys.speeds, node) is not None

    def sight(self, home: str) -> Sight:
        node = node_of(home)
        if node not in self.sights:
            self.sights[node] = Sight(self.store, self.model, node)
        return self.sights[node]

    def plan(self, wanted: Wanted, home: str, here: Plan, now_ms: int) -> Plan:
        """Home, or what is planned here, with the reason why.   here: as if it had no home"""
        sight = self.sight(home)
        views = sight.views()
        there = place(wanted, home, views, self.table, now_ms)
        is_away = any(view.name == there.pool and not view.is_ready for view in views)
        late = there.reason if is_away else self.why_late(wanted, there, now_ms)
        if not late and is_outgrown(wanted, views):
            late = "has no memory for all of it"
        if not late or (there.kind not in UNPLACED and here.kind in UNPLACED):
            return there
        if here.kind in UNPLACED:
            return there if here.kind == "refuse" else here
        return replace(here, reason=f"{here.reason}; {home} keeps the session, and {late}")

    def why_late(self, wanted: Wanted, there: Plan, now_ms: int) -> str:
        """Why home would not keep the promise, in words; "": it would, or nothing is predicted."""
        if there.kind in UNPLACED:
            return there.reason
        sla, since_ms = self.table[wanted.sla], max(0, now_ms - wanted.arrival_ms)
        if sla.ttft_ms and there.ttft_ms is not None and since_ms + there.ttft_ms > sla.ttft_ms:
            return "would be late"
        if sla.tpot_ms and there.tpot_ms is not None and there.tpot_ms > sla.tpot_ms:
            return "would be slow"
        return ""

    def larger(self, wanted: Wanted, now_ms: int) -> Plan | None:
        """At a node that holds what none of ours does; None: there is none that is ready."""
        plans = []
        found = who_holds(self.store, wanted.num_tokens)
        if not found and wanted.gives_way:
            found = who_holds(self.store, wanted.prompt_tokens + 1)
        for node in found:
            if node != self.store.keys.node:
                views = self.sight(pools_of(node)[0]).views()
                plans.append(place(wanted, None, views, self.table, now_ms))
        taken = [plan for plan in plans if plan.kind not in UNPLACED]
        waits = [plan for plan in plans if plan.kind == "wait"]
        return next(iter(taken + waits), None)

    def queued(self, wanted: Wanted, home: str, plan: Plan) -> None:
        """It has just been put into a queue there."""
        self.sight(home).queued(wanted, plan.pool, plan.then)


def is_outgrown(wanted: Wanted, views: Sequence[PoolView]) -> bool:
    """Whether a session's history alone is more than any of these pools holds."""
    ready = [view for view in views if view.is_ready]
    fits = any(view.holds(wanted.prompt_tokens + 1) for view in ready)
    return wanted.gives_way and bool(ready) and not fits
