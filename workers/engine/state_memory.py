"""The recurrent state of an engine's sequences, and checkpoints to start again from.

A step that is abandoned between layers has moved the state of some layers and not of others. KV
does not mind: it is written again with the same bits. State is lost, so the sequences of that step
go back to their last checkpoint, or to the start, and prefill again: the same bits, only time.

    | prompt ................ | output ............................
      256   512   768  ^ its end      1024          1280               a checkpoint, in place of the
                                                                       one before
"""

from collections.abc import Sequence as Items

import numpy as np

from kernels.ops import BLOCK_TOKENS, StateArena
from kv_tier.arena import Arena
from kv_tier.state_pool import StatePool
from workers.engine.scheduler import Scheduled
from workers.engine.sequence import Sequence
from workers.model.config import StateShape


class StateMemory:
    """The arrays of all slots (arena), and whose they are (pool)."""

    def __init__(self, shape: StateShape, num_slots: int) -> None:
        """Raises ArenaRefused."""
        self._conv = Arena(shape.conv(num_slots), np.float32)
        self._delta = Arena(shape.delta(num_slots), np.float32)
        self.arena = StateArena(self._conv.blocks, self._delta.blocks)
        self.pool = StatePool(num_slots, (self._conv.blocks, self._delta.blocks))

    def keep(self, scheduled: Items[Scheduled]) -> None:
        """Take the checkpoints that are due. The step is computed, num_cached not yet moved."""
        for part in scheduled:
            sequence = part.sequence
            if is_checkpoint_due(sequence.num_cached, part.end, sequence.num_prompt):
                assert sequence.state_slot is not None, sequence.id
                self.pool.save(sequence.id, sequence.state_slot, part.end)

    def rewind(self, scheduled: Items[Scheduled]) -> None:
        """The step was abandoned: its sequences go on from what is still known of them."""
        for part in scheduled:
            sequence = part.sequence
            assert sequence.state_slot is not None, sequence.id
            position = self.pool.restore(sequence.id, sequence.state_slot)
            assert position <= sequence.num_cached, (sequence.id, position, sequence.num_cached)
            sequence.num_cached = position

    def forget(self, sequence: Sequence) -> None:
        """It has ended."""
        self.pool.forget(sequence.id)

    def release(self) -> None:
        """Give all memory back. Nothing may be running."""
        assert self.pool.num_held == self.pool.num_checkpoints == 0
        self._conv.release()
        self._delta.release()


def is_checkpoint_due(begin: int, end: int, num_prompt: int) -> bool:
    """Whether a step over positions [begin, end) ended a prompt, or a block of positions."""
    return begin < num_prompt <= end or begin // BLOCK_TOKENS != end // BLOCK_TOKENS
