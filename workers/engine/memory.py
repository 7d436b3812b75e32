"""The memory of an engine's sequences: reserved to the longest end, shared where they begin alike.

    reserve ─► look for a known beginning (beginning.py) ─► share its blocks, map its files,
               copy what ends inside a block, restore the state ─► num_cached
    seal ────► a block is full: from now on the pool knows it by its key
    free ────► blocks, tail and state stay findable until somebody wants the memory
    hand_out ► the same, but a Kept holds them

Reservation is all or nothing. What a sequence finds counts once: its own cached blocks are taken
out of the cache before anything else is given out.

Invariants, checked by check():
  1. every sequence holds all of its memory or none
  2. a position that is still to be written lies in a block that nobody else holds, that no file is
     mapped into and that has no key
  3. nobody holds a block or a slot but sequences and Kepts
"""

from collections.abc import Iterable
from collections.abc import Sequence as Items
from typing import TYPE_CHECKING

from kernels.ops import BLOCK_TOKENS, F16
from kv_tier.arena import Arena, MapRefused
from kv_tier.block_pool import BlockPool
from kv_tier.state_pool import StatePool
from workers.engine.beginning import Beginning, Block, Finder
from workers.engine.kept import Kept
from workers.engine.payload import copy_tokens, load_state, tail_of
from workers.engine.reuse import Ends, Left, Reuse
from workers.engine.sequence import Sequence

if TYPE_CHECKING:
    import numpy as np

    from kernels.ops import StateArena
    from kv_tier.open_object import OpenObject


class Memory:
    """Blocks and slots, and their bytes."""

    def __init__(
        self,
        pool: BlockPool,
        states: StatePool | None = None,
        *,
        arena: "Arena[np.float16] | None" = None,
        state_arena: "StateArena | None" = None,
    ) -> None:
        """Without the arenas only what needs no bytes can be done: no beginning is known."""
        self.pool, self.states = pool, states
        self.num_reused = 0  # tokens that were not computed
        self._arena, self._state_arena = arena, state_arena
        self._ends = Ends()
        self._finder = Finder(pool, states, self._ends)

    def reserve(self, sequence: Sequence) -> bool:
        """Give it all its memory, and what is known of its beginning; False: not all is free."""
        if self.states is not None and not self.states.can_allocate:
            return False
        if self._needs_at_least(sequence) > self.pool.num_free:
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

    def seal(self, sequence: Sequence) -> None:
        """Name the blocks that have become full."""
        reuse = sequence.reuse
        if reuse is None:
            return
        num_full = sequence.num_cached // BLOCK_TOKENS
        if num_full > reuse.num_sealed:
            reuse.extend(sequence.num_cached)
            for index in range(reuse.num_sealed, num_full):
                self._name(reuse, index, reuse.keys[index], sequence.blocks[index])
            reuse.num_sealed = num_full

    def free(self, sequence: Sequence) -> None:
        """It has ended, or is somebody else's now."""
        reuse, slot = sequence.reuse, sequence.state_slot
        if reuse is not None and sequence.blocks and sequence.num_cached > 0:
            self._seal_end(sequence, reuse)
            if self.states is not None and slot is not None:
                name = reuse.key_at(sequence.num_cached).hex()
                self.states.settle(name, slot, sequence.num_cached)
                sequence.state_slot = None
        self._let_go(sequence)

    def spoil(self, sequence: Sequence) -> None:
        """What it computed is not to be trusted: nothing that it alone holds is found again."""
        for block_id in sequence.blocks:
            if self.pool.holders(block_id) == 1:
                self.pool.forget(block_id)
        if self.states is not None and sequence.reuse is not None:
            for position in sequence.reuse.marks:
                self.states.forget(sequence.reuse.key_at(position).hex())
        self._let_go(sequence)

    def hand_out(self, sequence: Sequence) -> Kept:
        """It leaves, and what it computed is held by the Kept."""
        reuse, num_kv, slot = sequence.reuse, sequence.num_cached, sequence.state_slot
        assert reuse is not None, f"{sequence.id}: without a chain nothing can be kept"
        tail = self._seal_end(sequence, reuse)
        num_full = num_kv // BLOCK_TOKENS
        held = sequence.blocks[: num_full + (tail is not None)]
        state = None
        if self.states is not None and slot is not None and num_kv > 0:
            key = reuse.key_at(num_kv)
            self.states.settle(key.hex(), slot, num_kv)
            state = (key, self.states.pin(key.hex()))
            sequence.state_slot = None
        sequence.blocks = sequence.blocks[len(held) :]
        self._let_go(sequence)
        blocks = list(zip(reuse.keys[:num_full], held[:num_full], strict=True))
        return Kept(
            request=sequence.request,
            token_ids=sequence.token_ids,
            num_prompt=sequence.num_prompt,
            num_kv=num_kv,
            start=reuse.chain.start,
            blocks=blocks,
            tail=tail,
            state=state,
        )

    def release(self, kept: Kept) -> None:
        """The Kept holds it no more."""
        tail = [] if kept.tail is None else [kept.tail[1]]
        self.pool.free([block_id for _, block_id in kept.blocks] + tail)
        if kept.state is not None:
            assert self.states is not None
            self.states.unpin(kept.state[0].hex())

    def can_rewind(self, sequence: Sequence, position: int) -> bool:
        """Whether everything from position on can be written again: nobody else has it.

        If so, its blocks from there on are nobody else's business until they are full again.
        """
        first = position // BLOCK_TOKENS
        again = sequence.blocks[first:]
        if any(self.pool.holders(b) > 1 or self._is_mapped(b) for b in again):
            return False
        for block_id in again:
            self.pool.forget(block_id)
        if sequence.reuse is not None:
            sequence.reuse.num_sealed = min(sequence.reuse.num_sealed, first)
        return True

    def rest(self, *, forget: bool) -> None:
        """Give memory that nobody wants back to the system; with forget, what is cached too, but
        for mapped files, which cost nothing."""
        if forget:
            self._forget_cached()
        if self._arena is not None:
            self._arena.discard(self.pool.free_blocks())

    def load(self) -> dict[str, float]:
        """What it holds and what it saved; reused tokens and dropped blocks since the start."""
        load: dict[str, float] = {
            "reused_tokens": self.num_reused,
            "mapped_blocks": 0 if self._arena is None else self._arena.num_mapped,
            "cached_blocks": self.pool.num_cached,
            "dropped_blocks": self.pool.num_dropped,
        }
        if self.states is not None:
            load["state_checkpoints"] = self.states.num_checkpoints
            load["free_state_slots"] = self.states.num_free
        return load

    def check(self, sequences: Items[Sequence], kepts: Iterable[Kept] = ()) -> None:
        """Assert the invariants."""
        self.pool.check()
        holders = [0] * self.pool.num_blocks
        slots = [s.state_slot for s in sequences if s.state_slot is not None]
        num_pins = 0
        for sequence in sequences:
            self._check_one(sequence)
            for block_id in sequence.blocks:
                holders[block_id] += 1
        for kept in kepts:
            held = [*kept.blocks, *([] if kept.tail is None else [kept.tail])]
            for _, block_id in held:
                holders[block_id] += 1
            num_pins += kept.state is not None
        assert holders == [self.pool.holders(b) for b in range(len(holders))], "holders differ"
        if self.states is not None:
            self.states.check()
            assert len(set(slots)) == len(slots) == self.states.num_held, "slots differ"
            assert self.states.num_pins == num_pins, "a state is pinned by nobody"

    # --- reserving ---

    def _needs_at_least(self, sequence: Sequence) -> int:
        """Blocks that nothing known of its beginning can spare it; no look is worth less."""
        num_known = 0 if sequence.reuse is None else len(sequence.reuse.keys) + 1
        return sequence.num_blocks_wanted - num_known

    def _need(self, sequence: Sequence, beginning: Beginning) -> tuple[int | None, bool]:
        """(blocks to allocate, None: they are not there; whether the part's block is taken over).

        A tail that nobody holds is taken over; of a full block a copy is made, if there is room.
        """
        pool = self.pool
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
        pool, part = self.pool, beginning.part
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
                self._load_block(blocks[-1], block)
                assert sequence.reuse is not None
                self._name(sequence.reuse, index, sequence.reuse.keys[index], blocks[-1])
        num_tokens = beginning.position % BLOCK_TOKENS
        if isinstance(part, int) and takes_part:
            self._take_over(part, num_tokens)
            blocks.append(part)
        elif part is not None:
            blocks.append(fresh.pop())
            copy_tokens(self._bytes(blocks[-1]), self._tokens_of(part), num_tokens)
            if isinstance(part, int):
                pool.free([part])
        sequence.take_blocks(blocks + fresh[::-1])

    def _allocate(self, count: int) -> list[int]:
        """Writable blocks."""
        fresh = self.pool.allocate(count)
        for block_id in fresh:
            if self._arena is not None and self._arena.is_mapped(block_id):
                self._arena.unmap(block_id)
        return fresh[::-1]

    def _load_block(self, block_id: int, opened: "OpenObject") -> None:
        """The block is the file's: mapped, or copied where it cannot be mapped."""
        assert self._arena is not None
        try:
            if self._arena.can_map:
                self._arena.map_file(block_id, opened.fd, opened.payload_offset)
                return
        except MapRefused:
            pass  # too many mappings, or a file system without them
        copy_tokens(self._bytes(block_id), self._tokens_of(opened), BLOCK_TOKENS)

    def _take_over(self, block_id: int, num_tokens: int) -> None:
        """A held block that was cached becomes writable; it keeps its first num_tokens."""
        self.pool.forget(block_id)
        if self._is_mapped(block_id):
            assert self._arena is not None
            kept = self._bytes(block_id)[..., :num_tokens, :].copy()
            self._arena.unmap(block_id)
            copy_tokens(self._bytes(block_id), kept, num_tokens)

    def _take_state(self, sequence: Sequence, beginning: Beginning) -> None:
        states, state = self.states, beginning.state
        if states is None:
            return
        if isinstance(state, str):
            sequence.state_slot = states.take(state)
            return
        slot = sequence.state_slot = states.allocate()
        if state is not None:
            assert self._state_arena is not None
            load_state(self._state_arena, slot, state.view())
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
        if self.states is not None:
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

    # --- leaving ---

    def _seal_end(self, sequence: Sequence, reuse: Reuse) -> tuple[bytes, int] | None:
        """Name the tail, too; None: it ends with a full block, or there is nothing."""
        self.seal(sequence)
        num_full, rest = divmod(sequence.num_cached, BLOCK_TOKENS)
        if rest == 0:
            return None
        key = reuse.key_at(sequence.num_cached)
        self._name(reuse, num_full, key, sequence.blocks[num_full], rest)
        return key, sequence.blocks[num_full]

    def _name(
        self, reuse: Reuse, index: int, key: bytes, block_id: int, num_tokens: int = BLOCK_TOKENS
    ) -> None:
        """From now on this block is found by its key, or by how it begins."""
        self.pool.keep(block_id, key)
        self._ends.note(reuse.parent(index), Left(key, reuse.tokens_behind(index)[:num_tokens]))

    def _let_go(self, sequence: Sequence) -> None:
        """Whatever it still has."""
        self.pool.free(sequence.blocks)
        sequence.blocks = []
        if self.states is not None and sequence.state_slot is not None:
            self.states.free(sequence.state_slot)
            sequence.state_slot = None
        if sequence.reuse is not None:
            sequence.reuse.close()

    def _forget_cached(self) -> None:
        for block_id in self.pool.cached_blocks():
            if not self._is_mapped(block_id):
                self.pool.forget(block_id)

    # --- bytes ---

    def _is_mapped(self, block_id: int) -> bool:
        return self._arena is not None and self._arena.is_mapped(block_id)

    def _bytes(self, block_id: int) -> F16:
        assert self._arena is not None
        block: F16 = self._arena.blocks[block_id]
        return block

    def _tokens_of(self, block: Block) -> F16:
        """(L, 2, H, tokens, D)"""
        if isinstance(block, int):
            return self._bytes(block)
        assert self._arena is not None
        return tail_of(block.view(), self._arena.blocks.shape[1:], block.num_tokens)

    def _check_one(self, sequence: Sequence) -> None:
        assert len(sequence.blocks) in (0, sequence.num_blocks_wanted), sequence.id
        assert sequence.blocks or sequence.num_cached == 0, sequence.id
        has_slot = self.states is not None and bool(sequence.blocks)
        assert (sequence.state_slot is not None) == has_slot, sequence.id
        for block_id in sequence.blocks[sequence.num_cached // BLOCK_TOKENS :]:
            assert self.pool.holders(block_id) == 1, f"{sequence.id} writes to a shared block"
            assert not self._is_mapped(block_id), f"{sequence.id} writes to a file"
            assert self.pool.key_of(block_id) is None, f"{sequence.id} writes to a sealed block"
