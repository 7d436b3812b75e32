"""The memory of an engine's sequences: reserved to the longest end, shared where they begin alike.

    reserve ─► look for a known beginning (beginning.py), take it (reserving.py) ─► num_cached
    seal ────► a block is full: from now on the pool knows it by its key
    catch_up ► another has computed more of the same beginning: it is taken
    free ────► blocks, tail and state stay findable until somebody wants the memory
    hand_out ► the same, but a Kept holds them

Reservation is all or nothing. Bytes are the Home's matter (home.py); here are numbers alone.

Invariants, checked by check():
  1. every sequence holds all of its memory or none
  2. a position that is still to be written lies in a block that nobody else holds, that no file is
     mapped into and that has no key
  3. nobody holds a block or a slot but sequences and Kepts
"""

from collections.abc import Iterable
from collections.abc import Sequence as Items

from kernels.ops import BLOCK_TOKENS
from kv_tier.block_pool import BlockPool
from kv_tier.state_pool import StatePool
from workers.engine.home import Home
from workers.engine.kept import Kept
from workers.engine.reserving import Reserving
from workers.engine.reuse import Ends, Reuse
from workers.engine.sequence import Sequence


class Memory:
    """Blocks and slots, and their bytes."""

    def __init__(
        self,
        pool: BlockPool,
        states: StatePool | None = None,
        *,
        home: Home | None = None,
    ) -> None:
        """Without a home only what needs no bytes can be done: no beginning is known."""
        self.pool, self.states = pool, states
        self._home = home
        self._ends = Ends(pool)
        self._spoiled: set[str] = set()  # ids of failed sequences of which a Kept may be out
        self._reserving = Reserving(pool, states, home, self._ends)

    def reserve(self, sequence: Sequence) -> bool:
        """Give it all its memory, and what is known of its beginning; False: not all is free."""
        return self._reserving.reserve(sequence)

    def catch_up(self, sequence: Sequence) -> bool:
        """Go on from what others have computed of its beginning meanwhile, if that is further.

        False: it was, and now the memory is not there: the sequence holds none any more.
        """
        had = sequence.num_cached
        if not self._reserving.is_behind_others(sequence):
            return True
        self.free(sequence)
        sequence.num_cached = 0
        if not self.reserve(sequence):
            return False
        self._reserving.count_again(sequence, had)
        return True

    @property
    def num_reused(self) -> int:
        """Tokens that were not computed."""
        return self._reserving.num_reused

    def seal(self, sequence: Sequence) -> None:
        """Name the blocks that have become full."""
        reuse = sequence.reuse
        if reuse is None:
            return
        num_full = sequence.num_cached // BLOCK_TOKENS
        if num_full > reuse.num_sealed:
            reuse.extend(sequence.num_cached)
            for index in range(reuse.num_sealed, num_full):
                self._ends.name(reuse, index, sequence.blocks[index])
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
        """What it computed is not to be trusted: nothing that it alone holds is found again, nor
        what a Kept of it holds, once that is released."""
        for block_id in sequence.blocks:
            if self.pool.holders(block_id) == 1:
                self.pool.forget(block_id)
            else:
                self._spoiled.add(sequence.id)
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
            num_reused=max(0, sequence.num_reused),
        )

    def release(self, kept: Kept) -> None:
        """The Kept holds it no more."""
        self.pool.free(kept.block_ids)
        if kept.state is not None:
            assert self.states is not None
            self.states.unpin(kept.state[0].hex())
        if kept.request.id in self._spoiled:
            self._spoiled.remove(kept.request.id)
            self._forget_computed(kept)

    def _forget_computed(self, kept: Kept) -> None:
        for block_id in kept.block_ids[kept.num_reused // BLOCK_TOKENS :]:
            if self.pool.holders(block_id) == 0:
                self.pool.forget(block_id)
        if kept.state is not None and self.states is not None:
            self.states.forget(kept.state[0].hex())

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
            if self.states is not None:
                self.states.forget_all()
        if self._home is not None:
            slots = [] if self.states is None else self.states.free_slots()
            self._home.rest(self.pool.free_blocks(), slots)

    def load(self) -> dict[str, float]:
        """What it holds and what it saved; reused tokens and dropped blocks since the start."""
        load: dict[str, float] = {
            "reused_tokens": self.num_reused,
            "mapped_blocks": 0 if self._home is None else self._home.num_mapped,
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
            for block_id in kept.block_ids:
                holders[block_id] += 1
            num_pins += kept.state is not None
        assert holders == [self.pool.holders(b) for b in range(len(holders))], "holders differ"
        if self.states is not None:
            self.states.check()
            assert len(set(slots)) == len(slots) == self.states.num_held, "slots differ"
            assert self.states.num_pins == num_pins, "a state is pinned by nobody"

    def _seal_end(self, sequence: Sequence, reuse: Reuse) -> tuple[bytes, int] | None:
        """Name the tail, too; None: it ends with a full block, or there is nothing."""
        self.seal(sequence)
        num_full, rest = divmod(sequence.num_cached, BLOCK_TOKENS)
        if rest == 0:
            return None
        key = reuse.key_at(sequence.num_cached)
        block_id = sequence.blocks[num_full]
        self._ends.name(reuse, num_full, block_id, key=key, num_tokens=rest)
        return key, block_id

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

    def _is_mapped(self, block_id: int) -> bool:
        return self._home is not None and self._home.is_mapped(block_id)

    def _check_one(self, sequence: Sequence) -> None:
        assert len(sequence.blocks) in (0, sequence.num_blocks_wanted), sequence.id
        assert sequence.blocks or sequence.num_cached == 0, sequence.id
        has_slot = self.states is not None and bool(sequence.blocks)
        assert (sequence.state_slot is not None) == has_slot, sequence.id
        for block_id in sequence.blocks[sequence.num_cached // BLOCK_TOKENS :]:
            assert self.pool.holders(block_id) == 1, f"{sequence.id} writes to a shared block"
            assert not self._is_mapped(block_id), f"{sequence.id} writes to a file"
            assert self.pool.key_of(block_id) is None, f"{sequence.id} writes to a sealed block"
