"""How much of a sequence need not be computed: the longest beginning of which all memory is known.

    found full blocks   [ 0 ][ 1 ][ 2 ] ?          by key: in the pool, or in a file
    ends tried, last    .....|.....|....|..        a position is usable if its part of a block is
    first                          ^               there (a tail, or the beginning of a full block)
                                   usable          and, where the model has one, its state

At least one token is left to compute: its logits give the next.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kernels.ops import BLOCK_TOKENS
from kv_tier.block_pool import BlockPool
from kv_tier.chain import common_length
from kv_tier.state_pool import StatePool
from workers.engine.home import Block
from workers.engine.reuse import Ends, Reuse
from workers.engine.sequence import Sequence

if TYPE_CHECKING:
    from kv_tier.open_object import OpenObject


@dataclass(slots=True)
class Beginning:
    """Tokens [0, position) are known.

    blocks  the full blocks below position
    part    what holds the rest of position, if it ends inside a block; it may hold more
    is_tail whether part is a tail that ends at position
    state   name of the checkpoint, or its file; None: no such layers, or position is 0
    found   tokens in full blocks that were found, whether a state was or not
    """

    position: int = 0
    blocks: list[Block] = field(default_factory=list)
    part: Block | None = None
    is_tail: bool = False
    state: "str | OpenObject | None" = None
    found: int = 0

    @property
    def in_arena(self) -> list[int]:
        """Of the full blocks, those that are in the arena already."""
        return [block for block in self.blocks if isinstance(block, int)]


class Finder:
    """Looks in the pools, and in the sequence's files; changes neither."""

    def __init__(self, pool: BlockPool, states: StatePool | None, ends: Ends) -> None:
        self._pool, self._states, self._ends = pool, states, ends

    def look(self, sequence: Sequence) -> Beginning:
        """The longest usable beginning now."""
        reuse = sequence.reuse
        if reuse is None or not reuse.is_looking:
            return Beginning()
        blocks = self._leading(reuse)
        found = len(blocks) * BLOCK_TOKENS
        for position in self._positions(reuse, len(blocks), len(sequence.token_ids) - 1):
            num_full, rest = divmod(position, BLOCK_TOKENS)
            part, is_tail = self._part(reuse, blocks, position) if rest else (None, False)
            state = self._state(reuse, position)
            if (rest and part is None) or (self._states is not None and state is None):
                continue
            return Beginning(position, blocks[:num_full], part, is_tail, state, found)
        return Beginning(found=found)

    def _leading(self, reuse: Reuse) -> list[Block]:
        """The full blocks from the first on, up to the first that is nowhere."""
        blocks: list[Block] = []
        for key in reuse.keys:
            block: Block | None = self._pool.find(key)
            if block is None and reuse.prefix is not None:
                block = reuse.prefix.blocks.get(key)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def _positions(self, reuse: Reuse, num_found: int, limit: int) -> Iterator[int]:
        """Where the beginning may end, the last first."""
        tried = {limit, *range(0, limit + 1, BLOCK_TOKENS)}
        if self._states is None:
            tried.update(self._common_ends(reuse, num_found, limit))
        else:
            for index in range(num_found + 1):
                tried.update(self._whole_ends(reuse, index))
        prefix = reuse.prefix
        if prefix is not None:
            tried.update((*prefix.ends, prefix.tail_end, prefix.state_end))
        for position in sorted(tried, reverse=True):
            if 0 < position <= limit and position // BLOCK_TOKENS <= num_found:
                yield position

    def _common_ends(self, reuse: Reuse, num_full: int, limit: int) -> Iterator[int]:
        """KV may be cut anywhere: how far each block known there agrees."""
        begin = num_full * BLOCK_TOKENS
        wanted = reuse.tokens_behind(num_full)[: max(0, limit - begin)]
        for left in self._ends.after(reuse.parent(num_full)):
            yield begin + common_length(left.token_ids, wanted)

    def _whole_ends(self, reuse: Reuse, num_full: int) -> Iterator[int]:
        """State cannot be cut: the ends of tails that agree to their last token."""
        wanted = reuse.tokens_behind(num_full)
        for left in self._ends.after(reuse.parent(num_full)):
            num_tokens = len(left.token_ids)
            if num_tokens < BLOCK_TOKENS and wanted[:num_tokens] == left.token_ids:
                yield num_full * BLOCK_TOKENS + num_tokens

    def _part(self, reuse: Reuse, blocks: list[Block], position: int) -> tuple[Block | None, bool]:
        """What holds [begin of its block, position), and whether it is a tail that ends there."""
        num_full, rest = divmod(position, BLOCK_TOKENS)
        if num_full < len(blocks):
            return blocks[num_full], False
        key = reuse.key_at(position)
        tail = self._pool.find(key)
        if tail is not None:
            return tail, True
        prefix = reuse.prefix
        if prefix is not None and prefix.tail is not None and prefix.tail.key == key:
            return prefix.tail, True
        return self._longer(reuse, num_full, rest), False

    def _longer(self, reuse: Reuse, num_full: int, rest: int) -> int | None:
        """A block in the arena that begins with the `rest` tokens behind num_full blocks."""
        wanted = reuse.tokens_behind(num_full)[:rest]
        for left in self._ends.after(reuse.parent(num_full)):
            block_id = self._pool.find(left.key)
            if block_id is not None and left.token_ids[:rest] == wanted:
                return block_id
        return None

    def _state(self, reuse: Reuse, position: int) -> "str | OpenObject | None":
        if self._states is None:
            return None
        key = reuse.key_at(position)
        if self._states.find(key.hex()) is not None:
            return key.hex()
        prefix = reuse.prefix
        if prefix is not None and prefix.state is not None and prefix.state.key == key:
            return prefix.state
        return None
