"""How many messages of each class are read now: what waits, as far as some queue has room for it.

Pure. What is read is bound to this router, and soon to a pool; so no more is read than can be
placed, and a few of each class among which the pools may choose what suits them. A class that waits
for a full pool keeps no other from being read.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from router.burden import places_for
from router.pools import PoolView
from workers.sla import SlaTable

HELD_MOST: Final = 16  # of a class, while no pool has room for them


def room_of(
    waiting: Mapping[str, int],
    held: Mapping[str, int],
    pools: Sequence[PoolView],
    table: SlaTable,
) -> dict[str, int]:
    """Messages to read at most, by class.

    waiting  in the stream of each class, those included that this router holds
    held     of those that this router holds
    """
    room = {}
    for sla, count in waiting.items():
        places = sum(max(0, places_for(sla, pool, table)) for pool in pools)
        room[sla] = max(0, min(count - held.get(sla, 0), places, HELD_MOST - held.get(sla, 0)))
    return room
