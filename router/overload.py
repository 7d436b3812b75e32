"""Back-pressure to producers on streams: they are told each second, and what is too much is ended.

The newest go first: who has waited is nearest to being served. What the HTTP door has accepted
stays (it was weighed there), and so does what a router has read. Each one that goes is told when a
new request would be taken: code "overloaded", retry_after_s.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, cast

from router.admit import Reject, reject_entry
from router.entry import read_entry
from router.not_now import class_is_full, not_now
from router.pools import PoolView
from router.pressure import shared_pressure
from router.refusal import Refused
from router.typical import Typical
from workers.address import Networks
from workers.log import logger
from workers.promises import press
from workers.sla import SlaTable
from workers.store import Store
from workers.wire import Pressure

LOOKED_AT: Final = 64  # of a class in one go; the next second brings the next ones

log = logger("router")


class Overload:
    """One router's. max_queue: of classes that do not say how many may wait."""

    def __init__(
        self, store: Store, table: SlaTable, typical: Typical, allow: Networks, max_queue: int
    ) -> None:
        self.store, self.table, self.typical = store, table, typical
        self.allow, self.max_queue = allow, max_queue

    def tell(
        self,
        views: Sequence[PoolView],
        now_ms: int,
        waiting: Mapping[str, int],
        share: float = 1.0,
        classes: Collection[str] | None = None,
    ) -> None:
        """Once a second. waiting: in each stream; share: of it, what is this node's to do.

        classes: of which it can tell; of a fleet not those that other nodes are quicker with
        """
        pressures = {
            sla.name: shared_pressure(
                self.typical.next_one(sla.name, now_ms),
                views,
                self.table,
                now_ms,
                waiting,
                sla.max_queue or self.max_queue,
                share,
            )
            for sla in self.table
            if classes is None or sla.name in classes
        }
        press(self.store, pressures)
        for name, pressure in pressures.items():
            if pressure.waiting > pressure.most:
                self.shed(name, pressure)

    def shed(self, sla: str, pressure: Pressure) -> None:
        """Ends the newest of a stream, so that `most` are left; other routers may be at it, too."""
        key = self.store.keys.requests(sla)
        entries = cast(list[Any], self.store.redis.xrevrange(key, count=LOOKED_AT))
        gone, excess = 0, min(pressure.waiting, self.store.redis.xlen(key)) - pressure.most
        for entry_id, fields in entries:
            if gone >= excess:
                break
            gone += self._end(sla, entry_id.decode(), fields or {}, pressure) == "refused"
        log.info("shed", sla=sla, requests=gone, waiting=pressure.waiting, most=pressure.most)

    def _end(
        self, sla: str, entry_id: str, fields: Mapping[bytes, bytes], pressure: Pressure
    ) -> str:
        reject = reject_of(sla, entry_id, fields, self.allow)
        assert reject.request_id is not None, "an entry gives a name"
        return self.store.refuse(
            sla=sla,
            entry_id=entry_id,
            request_id=reject.request_id,
            tenant=reject.tenant,
            end=not_now(class_is_full(pressure.waiting), pressure.retry_ms, "overloaded"),
            body=b"",
            webhook=reject.webhook,
            unread=True,
        )


def reject_of(sla: str, entry_id: str, fields: Mapping[bytes, bytes], allow: Networks) -> Reject:
    """Whose an entry is, as far as it can be read."""
    refused = Refused("request", "is not taken now", "overloaded")
    try:
        values, _ = read_entry(fields)
    except Refused:
        values = {}
    return reject_entry(refused, sla=sla, entry_id=entry_id, fields=values, allow=allow)
