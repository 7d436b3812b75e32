"""How long a sequence each pool holds, also one that is away for a while: it is waited for.

A pool that restarts, or whose device failed, holds as much when it is back. So what fits there
alone goes into its queue, and only what no known pool holds is refused for ever (placement.py). Who
waits for a pool that stays away is ended by stranded.py.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from router.pools import BLOCK_TOKENS
from workers.wire import PoolLoad

LATELY_S: Final = 600.0  # since it was last ready; then it counts as gone


class Largest:
    """One process's memory of a model's pools."""

    def __init__(self, model: str) -> None:
        self.model = model
        self.blocks: Mapping[str, int] = {}  # of the largest worker, by pool
        self._seen: dict[str, tuple[int, float]] = {}  # blocks, when

    def look(self, loads: Iterable[PoolLoad], now_s: float) -> None:
        """What the pools say now.   now_s: monotonic"""
        said: dict[str, int] = {}
        for load in loads:
            if load.state == "ready" and load.model == self.model and load.total_blocks:
                said[load.pool] = max(load.total_blocks, said.get(load.pool, 0))
        self._seen |= {pool: (blocks, now_s) for pool, blocks in said.items()}
        fresh = {pool: one for pool, one in self._seen.items() if now_s - one[1] <= LATELY_S}
        self._seen, self.blocks = fresh, {pool: blocks for pool, (blocks, _) in fresh.items()}

    @property
    def tokens(self) -> int | None:
        """Of the longest sequence that some pool holds; None: no pool has said so lately."""
        return max(self.blocks.values()) * BLOCK_TOKENS if self.blocks else None
