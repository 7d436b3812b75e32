"""Sequences that give their memory to more urgent ones, and get it back: between steps.

    running ──displaced, park──► Kept, to be written ──written──► in files alone
       ▲                                                             │ there is room again
       └────── in line, first of its class ◄── bring_back ◄── returning

If nobody does this, the urgent ones wait until somebody ends. All of it belongs to the engine's
thread.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from workers.engine.kept import Kept
from workers.engine.reuse import Reuse
from workers.engine.scheduler import Scheduler
from workers.engine.sequence import Sequence

if TYPE_CHECKING:
    from kv_tier.prefix import Prefix


class Parking:
    """Of one engine."""

    def __init__(
        self,
        scheduler: Scheduler,
        sequences: Mapping[str, Sequence],
        kepts: Iterable[Kept],
        hand_out: Callable[[Sequence], Kept],
        now_ms: Callable[[], int],
    ) -> None:
        """sequences, kepts: the engine's, as they are."""
        self._scheduler, self._sequences, self._kepts = scheduler, sequences, kepts
        self._hand_out, self._now_ms = hand_out, now_ms

    def displaced(self) -> list[str]:
        """Whose memory a more urgent request needs now; park each of them."""
        scheduler, pool = self._scheduler, self._scheduler.memory.pool
        if scheduler.num_waiting == 0:
            return []
        scheduler.admit(self._now_ms())
        if scheduler.short is None:
            return []
        leaving = [block for kept in self._kepts for block in kept.block_ids]
        victims = scheduler.to_suspend(sum(pool.holders(block) == 1 for block in leaving))
        return [victim.id for victim in victims if victim.reuse is not None]

    def park(self, request_id: str) -> Kept | None:
        """It waits without memory, which is the Kept's: to be written.

        None: it had computed nothing. Else it is brought back: written, returning, bring_back.
        """
        sequence = self._sequences[request_id]
        if sequence.num_cached == 0:
            self._scheduler.start_over(sequence)
            return None
        kept = self._hand_out(sequence)
        self._scheduler.suspend(sequence)
        return kept

    def written(self, request_id: str) -> None:
        """What a parked one has computed is in files, or never will be."""
        sequence = self._sequences.get(request_id)
        if sequence is not None and sequence in self._scheduler.suspended:
            self._scheduler.written(sequence)

    def returning(self) -> str | None:
        """A parked one for which there is room again; bring it back."""
        sequence = self._scheduler.to_resume()
        return None if sequence is None else sequence.id

    def bring_back(self, request_id: str, prefix: "Prefix | None") -> None:
        """A parked one goes on, with what files have of it."""
        sequence = self._sequences.get(request_id)
        if sequence is None or sequence not in self._scheduler.suspended:
            if prefix is not None:
                prefix.close()
            return
        assert sequence.reuse is not None, request_id
        chain, is_looking = sequence.reuse.chain, sequence.reuse.is_looking
        sequence.reuse = Reuse(chain, sequence.token_ids, prefix, is_looking=is_looking)
        self._scheduler.resume(sequence)
