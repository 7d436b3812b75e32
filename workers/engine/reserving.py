"""A sequence gets all of its memory at once: what is known of its beginning, and room for the rest.

    known blocks   in memory: shared            in a file: the block becomes the file's
    known part     a tail that nobody holds: taken over        else: copied into a block of its own
    known state    of a checkpoint, or of a file

What a sequence finds counts once: its own cached blocks are taken out of the cache before anything
else is given out.
"""

from kernels.ops import BLOCK_TOKENS
from kv_tier.block_pool import BlockPool
from kv_tier.state_pool import StatePool
from workers.engine.beginning import Beginning, Finder
from workers.engine.home import Block, Home
from workers.engine.reuse import Ends, Left, Reuse
from workers.engine.sequence import Sequence


class Reserving:
    """One engine's. num_reused: tokens that were not computed."""

    def __init__(
        self, pool: BlockPool, states: StatePool | None, home: Home | None, ends: Ends
    ) -> None:
        self.num_reused = 0
        self._pool, self._states, self._home, self._ends = pool, states, home, ends
        self._finder = Finder(pool, states, ends)

    def reserve(self, sequence: Sequence) -> bool:
        """Give it all its memory, and what is known of its beginning; False: not all is free."""
        if self._states is not None and not self._states.can_allocate:
            return False
        if self._needs_at_least(sequence) > self._pool.num_free:
            return False
        beginning = self._finder.look(sequence)
        need, takes_part = self._need(sequence, beginning)
        if need is None:
            return False
        self._take_blocks(sequence, beginning, need, takes_part)
        self._take_state(sequence, beginning)
        if sequence.reuse is not None:
            self._begin(sequence, sequence.reuse, beginning)
        return True

    def is_behind_others(self, sequence: Sequence) -> bool:
        """Whether its next full block, and so all before, is known by now."""
        reuse, index = sequence.reuse, sequence.num_cached // BLOCK_TOKENS
        if reuse is None or not reuse.is_looking or len(reuse.keys) <= index:
            return False
        if self._pool.find(reuse.keys[index]) is None:
            return False
        return self._finder.look(sequence).position // BLOCK_TOKENS > index

    def count_again(self, sequence: Sequence, had: int) -> None:
        """It has caught up with others: of its tokens, had were computed or counted before."""
        sequence.num_reused += max(0, sequence.num_cached - had)
        self.num_reused -= had

    def _needs_at_least(self, sequence: Sequence) -> int:
        """Blocks that nothing known of its beginning can spare it; no look is worth less."""
        num_known = 0 if sequence.reuse is None else len(sequence.reuse.keys) + 1
        return sequence.num_blocks_wanted - num_known

    def _need(self, sequence: Sequence, beginning: Beginning) -> tuple[int | None, bool]:
        """(blocks to allocate, None: they are not there; whether the part's block is taken over).

        A tail that nobody holds is taken over; of a full block a copy is made, if there is room.
        """
        pool = self._pool
        in_arena = beginning.in_arena
        need = sequence.num_blocks_wanted - len(in_arena)
        room = pool.num_free - sum(pool.holders(block_id) == 0 for block_id in in_arena)
        part = beginning.part
        takes_part = False
        if isinstance(part, int) and pool.holders(part) == 0:
            room -= 1  # it is held while it is copied
            if beginning.is_tail or need > room:
                takes_part, need = True, need - 1
        return (need if need <= room else None), takes_part

    def _take_blocks(
        self, sequence: Sequence, beginning: Beginning, need: int, takes_part: bool
    ) -> None:
        pool, part = self._pool, beginning.part
        for block_id in beginning.in_arena:
            pool.hold(block_id)
        if isinstance(part, int):
            pool.hold(part)
        fresh = self._allocate(need)
        blocks: list[int] = []
        for index, block in enumerate(beginning.blocks):
            if isinstance(block, int):
                blocks.append(block)
            else:
                blocks.append(fresh.pop())
                assert sequence.reuse is not None and self._home is not None
                self._home.load_block(blocks[-1], block)
                self._ends.name(sequence.reuse, index, blocks[-1])
        if part is not None:
            num_tokens = beginning.position % BLOCK_TOKENS
            blocks.append(self._take_part(part, num_tokens, fresh, takes_part))
        sequence.take_blocks(blocks + fresh[::-1])

    def _take_part(self, part: Block, num_tokens: int, fresh: list[int], takes_part: bool) -> int:
        """A block of its own that begins with the part's num_tokens."""
        assert self._home is not None
        if isinstance(part, int) and takes_part:
            self._pool.forget(part)
            self._home.make_own(part, num_tokens)
            return part
        block_id = fresh.pop()
        self._home.load_tokens(block_id, part, num_tokens)
        if isinstance(part, int):
            self._pool.free([part])
        return block_id

    def _allocate(self, count: int) -> list[int]:
        """Writable blocks, the first of them last."""
        fresh = self._pool.allocate(count)
        if self._home is not None:
            for block_id in fresh:
                self._home.make_own(block_id)
        return fresh[::-1]

    def _take_state(self, sequence: Sequence, beginning: Beginning) -> None:
        states, state = self._states, beginning.state
        if states is None:
            return
        if isinstance(state, str):
            sequence.state_slot = states.take(state)
            return
        slot = sequence.state_slot = states.allocate()
        if state is not None:
            assert self._home is not None
            self._home.load_state(slot, state)
            states.save(state.key.hex(), slot, beginning.position)  # to go back to, if there's room

    def _begin(self, sequence: Sequence, reuse: Reuse, beginning: Beginning) -> None:
        """Note what was found, and where checkpoints are to be taken."""
        position = sequence.num_cached = beginning.position
        sequence.note_reused(position)
        self.num_reused += position
        reuse.num_sealed = position // BLOCK_TOKENS
        reuse.cuts.clear()
        if position > 0:
            reuse.marks.add(position)
        if self._states is not None:
            self._note_state(reuse, position)
            prompt_end = (sequence.num_prompt - 1) // BLOCK_TOKENS * BLOCK_TOKENS
            last = len(sequence.token_ids) - 1
            reuse.cuts = {c for c in (prompt_end, beginning.found) if position < c <= last}
        reuse.close()

    def _note_state(self, reuse: Reuse, position: int) -> None:
        """Others may begin with this state as well; at a block's end they look without a note."""
        num_full, rest = divmod(position, BLOCK_TOKENS)
        if rest:
            left = Left(reuse.key_at(position), reuse.tokens_behind(num_full)[:rest])
            self._ends.note(reuse.parent(num_full), left)
