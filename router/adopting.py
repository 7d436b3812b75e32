"""Requests of a node that is gone, or claims nothing, go on in others, as those have room.

    gone ──► its leases run out: back in its queues ──► placed like new ones ──► our queues
                                                          └ no room: another node's, or later

One node at a time does it. Tokens that were made go on from the journal; what the dead node had
computed is fetched from afar or computed again.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, cast

from router.audit import Audit
from router.homing import is_outgrown
from router.membership import Membership
from router.placement import place
from router.pools import PoolView, Wanted
from router.sight import Sight, job_of
from router.stranded import PATIENCE_S
from workers.clock import now_ms
from workers.fleet.names import node_of, pools_of
from workers.fleet.presence import longest
from workers.log import logger
from workers.placed import Placed, placed
from workers.script import texts
from workers.sla import SlaTable
from workers.store import Store
from workers.wire import full_id, split_id

LOOK_EVERY_S: Final = 1.0
SEARCH_EVERY_S: Final = 10.0  # for queues of nodes that nobody knows
AT_ONCE: Final = 64  # of a queue that are looked at

log = logger("router")


class Adopter:
    """One router's."""

    def __init__(self, store: Store, sight: Sight, table: SlaTable, fleet: Membership) -> None:
        self.store, self.sight, self.table, self.fleet = store, sight, table, fleet
        self.audit = Audit(store)
        self._looked_at = self._searched_at = float("-inf")
        self._unheard: list[str] = []
        self._since: dict[str, dict[str, float]] = {}  # what no node could hold, by node and id

    def look(self) -> None:
        """Once a second, if somebody is gone, and unless another node has just done so."""
        now = time.monotonic()
        if now - self._looked_at < LOOK_EVERY_S:
            return
        self._looked_at = now
        self.audit.look()
        for node in self.orphans():
            pools, turn = self.orphaned(node), f"adopt:{node}"
            if not pools or not self.store.takes_turn(turn, LOOK_EVERY_S * 0.9):
                continue
            if not self.adopt(node, pools):
                self.store.passes_turn(turn)  # to one that has room for it

    def orphans(self) -> tuple[str, ...]:
        """Nodes that are gone or not believed, and those that nobody has heard."""
        if self.fleet.refused:
            return ()
        now = time.monotonic()
        if now - self._searched_at >= SEARCH_EVERY_S:
            self._searched_at, self._unheard = now, self.unheard()
        return tuple(dict.fromkeys((*self.fleet.gone, *self.audit.doubted, *self._unheard)))

    def unheard(self) -> list[str]:
        """Others for which something was queued once, and of which nothing is known.

        They have been forgotten, or had another name before, or none (""). A node without a name
        hears of nobody: to it whoever has left or is silent is one of them.
        """
        keys, redis = self.store.keys, self.store.redis
        queues = texts(list(cast(set[bytes], redis.smembers(f"{keys.rq_prefix}:queues"))))
        found = {node_of(queue.removeprefix(keys.queue(""))) for queue in queues} - {keys.node}
        since_s = 0.0 if keys.node else redis.time()[0] - self.store.lease_s
        heard = texts(cast(list[bytes], redis.zrangebyscore(keys.nodes, since_s, "+inf")))
        return sorted(found.difference(heard))

    def orphaned(self, node: str) -> list[str]:
        """Its pools for which something waits or is leased, and that do not serve it."""
        keys, pools = self.store.keys, pools_of(node)
        with self.store.redis.pipeline(transaction=False) as pipeline:
            for pool in pools:
                pipeline.llen(keys.queue(pool))
                pipeline.zcard(keys.wip(pool))
            found = pipeline.execute()
        work = [pool for n, pool in enumerate(pools) if any(found[2 * n : 2 * n + 2])]
        if not work or not self.store.loads(node):  # none of its pools says that it lives
            return work
        return [pool for pool in work if pool in self.audit.stuck]

    def adopt(self, node: str, pools: Sequence[str]) -> int:
        """Gives how many go on here."""
        for pool in pools:
            self.store.reap(pool)
        taken = self.takes(node, pools)
        for pool, request_id, reason in taken:
            outcome = self.store.move(request_id, pool, reason, of_node=node)
            log.info("taken over", id=request_id, of=node, to=pool, outcome=outcome)
            self.sight.forget()
        return len(taken)

    def what_became_of(self, node: str, pool: str) -> str:
        """Of the pool for which it waited."""
        if node in self.fleet.gone or pool not in self.audit.stuck:
            return f"{node or 'a node without a name'} is gone"
        return self.audit.stuck[pool]

    def takes(self, node: str, pools: Sequence[str]) -> list[tuple[str, str, str]]:
        """(pool of ours, request id, reason) of those that wait there and have room here."""
        found = [one for one in placed(self.store, AT_ONCE, pools) if not one.running]
        taken = []
        too_large: list[Placed] = []
        for one in found:
            wanted, views = self.wanted(one), self.sight.views()
            plan = place(wanted, None, views, self.table, now_ms())
            if plan.kind == "refuse" and plan.field == "max_tokens":
                too_large.append(one)
            if plan.kind in ("wait", "refuse") or self.is_for_larger(wanted, views):
                continue
            reason = f"{plan.pool}: taken over, {self.what_became_of(node, one.pool)}"
            taken.append((plan.pool, one.request_id, reason))
            self.sight.queued(wanted, plan.pool, plan.then)
        self.end_late(node, too_large)
        return taken

    def wanted(self, one: Placed) -> Wanted:
        """As placement sees it: nothing of it is here, and its session's history comes with it."""
        wanted = replace(job_of(one).wanted, kept_tokens=0, then=None)
        if one.prompt_tokens or one.session_id is None:
            return wanted
        session = self.store.session(full_id(split_id(one.request_id)[0], one.session_id))
        history = int(session.get("tokens") or 0)
        return replace(wanted, prompt_tokens=history + 1, gives_way=True)

    def is_for_larger(self, wanted: Wanted, views: Sequence[PoolView]) -> bool:
        """Whether another node holds its session, and this one does not."""
        return is_outgrown(wanted, views) and wanted.prompt_tokens < longest(self.store)

    def end_late(self, node: str, too_large: Sequence[Placed]) -> None:
        """What no node that lives could hold has waited for its own long enough (stranded.py)."""
        most, now = longest(self.store) if too_large else 0, time.monotonic()
        sizes = {one: one.prompt_tokens + one.max_tokens for one in too_large}
        stranded = [one for one, size in sizes.items() if size > most]
        before, names = self._since.get(node, {}), [one.request_id for one in stranded]
        since = self._since[node] = {name: before.get(name, now) for name in names}
        for one in stranded:
            if now - since[one.request_id] >= PATIENCE_S:
                what = self.what_became_of(node, one.pool)
                reason = f"{what}, and the others hold {most} tokens, not {sizes[one]}"
                if self.store.give_up(one.request_id, one.pool, reason):
                    log.warning("given up", id=one.request_id, reason=reason)
