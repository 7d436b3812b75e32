"""Requests that wait for a lost pool while those that run could never hold them: they end, late.

A GPU that failed may come back within seconds, so they wait for it (replan.py moves what fits
elsewhere). After PATIENCE_S whoever asked gets an error rather than silence. While no pool is ready
at all, or theirs loads, nothing ends: then it is the node that is waited for.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from router.pools import PoolView
from router.replan import Job

PATIENCE_S: Final = 600.0


class Stranded:
    """Of one router; pure but for what it remembers from one look to the next."""

    def __init__(self) -> None:
        self.since: dict[str, float] = {}  # by request id, as now_s

    def late(
        self, pools: Sequence[PoolView], jobs: Iterable[Job], now_s: float
    ) -> list[tuple[str, str, str]]:
        """(request id, pool, reason) of those that have waited long enough.   now_s: monotonic"""
        lost = {pool.name: pool.state for pool in pools if not pool.is_ready}
        ready = [pool for pool in pools if pool.is_ready]
        stranded = {
            job.wanted.request_id: job
            for job in jobs
            if ready and job.pool in lost and not job.running and fits_nowhere(job, ready)
        }
        self.since = {i: self.since.get(i, now_s) for i in stranded}
        late = [
            (i, job)
            for i, job in stranded.items()
            if now_s - self.since[i] >= PATIENCE_S and lost[job.pool] != "loading"
        ]
        return [(i, job.pool, why(job, lost[job.pool], ready)) for i, job in late]


def fits_nowhere(job: Job, ready: Sequence[PoolView]) -> bool:
    return not any(pool.holds(job.wanted.num_tokens) for pool in ready)


def why(job: Job, state: str, ready: Sequence[PoolView]) -> str:
    others = ", ".join(pool.name for pool in ready)
    wanted = f"{job.wanted.num_tokens} tokens"
    return f"{job.pool} has been {state} for {PATIENCE_S:.0f} s, and {others} cannot hold {wanted}"
