"""What has been placed is placed anew when something happened: a pool was lost, a deadline is at
risk, a processor is idle, a class was changed.

Pure: the router calls it again and again with what it sees, and carries out what it says
(workers/lua/move.lua). Never more than MOVES_AT_ONCE moves, so that a turn stays short and
predictions are looked at again before the next.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from router.placement import ALL, Switches
from router.pools import PoolView, Wanted
from workers.sla import SlaTable

MOVES_AT_ONCE: Final = 4


@dataclass(frozen=True, slots=True)
class Job:
    """A request that is in a pool.

    wanted     with the class that it has now, and the output tokens that it has
    pool       whose queue it is in, or where it runs
    running    claimed; False: it waits in the queue
    moved_ms   Unix time at which it last changed its pool; 0: never
    """

    wanted: Wanted
    pool: str
    running: bool = False
    moved_ms: int = 0


@dataclass(frozen=True, slots=True)
class Move:
    """Another pool is to go on with a request."""

    request_id: str
    to_pool: str
    reason: str


def replan(
    pools: Sequence[PoolView],
    jobs: Sequence[Job],
    table: SlaTable,
    now_ms: int,
    switches: Switches = ALL,
) -> list[Move]:
    """The moves that are worth it now, the most urgent first.

    pools  each pool once; their queues hold the waiting ones of jobs, and may hold more
    jobs   queued and running ones that may be moved; need not be all
    """
    lost = {pool.name for pool in pools if not pool.is_ready}
    moves = []
    for job in sorted(jobs, key=lambda job: table[job.wanted.sla].rank_ms(job.wanted.arrival_ms)):
        fits = [p.name for p in pools if p.is_ready and p.holds(job.wanted.num_tokens)]
        if job.pool in lost and not job.running and fits:
            reason = f"{fits[0]}: {job.pool} was lost"
            moves.append(Move(job.wanted.request_id, fits[0], reason))
    return moves[:MOVES_AT_ONCE]
