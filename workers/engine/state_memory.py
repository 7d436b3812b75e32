"""The recurrent state of an engine's sequences, and checkpoints to start again from.

A step that is abandoned between layers has moved the state of some layers and not of others. KV
does not mind: it is written again with the same bits. State is lost, so the sequences of that step
go back to their last checkpoint, or to the start, and prefill again: the same bits, only time.

    | prompt ................ | output ............................
      256   512   768  ^ its end      1024          1280      passing checkpoints: only the latest
             |     the last block's end in the prompt           lasting ones (Reuse.cuts), named by
             the end of what others share                       the tokens before them

A sequence that may not write again what it would have to (others share it, or it is a file) gives
its memory back, and takes it anew when its turn comes.
"""

from collections.abc import Sequence as Items

from kernels.ops import BLOCK_TOKENS
from kv_tier.state_pool import StatePool
from workers.engine.chunks import Scheduled
from workers.engine.memory import Memory
from workers.engine.sequence import Sequence


class StateMemory:
    """Takes checkpoints in the spare slots of a pool, and goes back to them."""

    def __init__(self, pool: StatePool) -> None:
        self.pool = pool

    def keep(self, scheduled: Items[Scheduled]) -> None:
        """Take the checkpoints that are due. The step is computed, num_cached not yet moved."""
        for part in scheduled:
            sequence, slot = part.sequence, part.sequence.state_slot
            assert slot is not None, sequence.id
            reuse = sequence.reuse
            if reuse is not None and part.end in reuse.cuts:
                name = reuse.key_at(part.end).hex()
                if self.pool.save(name, slot, part.end, is_lasting=True):
                    reuse.marks.add(part.end)
                    self.pool.forget(sequence.id)  # an earlier place to go back to
            elif is_checkpoint_due(sequence.num_cached, part.end, sequence.num_prompt):
                self.pool.save(sequence.id, slot, part.end)

    def rewind(self, scheduled: Items[Scheduled], memory: Memory) -> list[Sequence]:
        """The step was abandoned: its sequences go on from what is still known of them.

        Gives those that cannot, and have to start over.
        """
        stuck: list[Sequence] = []
        for part in scheduled:
            sequence = part.sequence
            assert sequence.state_slot is not None, sequence.id
            position = self.pool.restore(self._last_name(sequence), sequence.state_slot)
            assert position <= sequence.num_cached, (sequence.id, position, sequence.num_cached)
            if memory.can_rewind(sequence, position):
                sequence.num_cached = position
            else:
                stuck.append(sequence)
        return stuck

    def _last_name(self, sequence: Sequence) -> str:
        """The name of its latest checkpoint; any name if it has none."""
        names = [sequence.id]
        if sequence.reuse is not None:
            names += [sequence.reuse.key_at(p).hex() for p in sequence.reuse.marks]
        known = [c for c in map(self.pool.find, names) if c is not None]
        known = [c for c in known if c.position <= sequence.num_cached]
        return max(known, key=lambda c: c.position).name if known else sequence.id

    def forget(self, sequence: Sequence) -> None:
        """It has ended."""
        self.pool.forget(sequence.id)


def is_checkpoint_due(begin: int, end: int, num_prompt: int) -> bool:
    """Whether a step over positions [begin, end) ended a prompt, or a block of positions."""
    return begin < num_prompt <= end or begin // BLOCK_TOKENS != end // BLOCK_TOKENS
