"""What one sequence knows of its beginning: the keys of its blocks, and which files hold them.

    tokens   [0, 256)   [256, 512)   [512, 700)
    keys      keys[0]     keys[1]                     sealed: the pool knows the block by its key
              sealed      sealed       not complete

Keys are made here from the sequence's own tokens, whatever a Prefix says: what is found under a key
is right for whoever has that key.
"""

from collections import OrderedDict
from collections.abc import Sequence as Items
from typing import TYPE_CHECKING, Final, NamedTuple

from kernels.ops import BLOCK_TOKENS
from kv_tier.block_pool import BlockPool

if TYPE_CHECKING:
    from kv_tier.chain import Chain
    from kv_tier.prefix import Prefix

LEFT_OF_ONE: Final = 4  # what is remembered behind one block
PARENTS_MAX: Final = 1024  # blocks behind which something is remembered: 8 MiB of tokens at most


class Reuse:
    """Of one sequence; token_ids is its growing list, shared with it.

    num_sealed  of its blocks the pool knows the keys
    cuts        positions at which a chunk must end, for a checkpoint of the recurrent state
    marks       positions of which a lasting checkpoint was taken or used
    is_looking  False: it computes everything, and only its blocks are kept
    """

    def __init__(
        self, chain: "Chain", token_ids: list[int], prefix: "Prefix | None", *, is_looking: bool
    ) -> None:
        self.chain = chain
        self.prefix = prefix
        self.is_looking = is_looking
        self.keys: list[bytes] = chain.block_keys(token_ids)
        self.num_sealed = 0
        self.cuts: set[int] = set()
        self.marks: set[int] = set()
        self._token_ids = token_ids
        self._ends: dict[int, bytes] = {}

    def parent(self, num_blocks: int) -> bytes:
        """The key after so many full blocks, each of which is computed or was in the prompt."""
        return self.keys[num_blocks - 1] if num_blocks else self.chain.start

    def key_at(self, position: int) -> bytes:
        """The key after `position` tokens; at a block's end it is the block's."""
        self.extend(position)
        num_blocks, rest = divmod(position, BLOCK_TOKENS)
        if rest == 0:
            return self.parent(num_blocks)
        key = self._ends.get(position)
        if key is None:
            key = self.chain.next(self.parent(num_blocks), self.tokens_behind(num_blocks)[:rest])
            self._ends[position] = key
        return key

    def extend(self, position: int) -> None:
        """Keys of the blocks that have become full, up to position."""
        while (len(self.keys) + 1) * BLOCK_TOKENS <= position:
            ids = self.tokens_behind(len(self.keys))
            self.keys.append(self.chain.next(self.parent(len(self.keys)), ids))

    def tokens_behind(self, num_blocks: int) -> list[int]:
        """The up to 256 tokens behind so many full blocks."""
        begin = num_blocks * BLOCK_TOKENS
        return self._token_ids[begin : begin + BLOCK_TOKENS]

    def close(self) -> None:
        """The files are used up, or not wanted."""
        if self.prefix is not None:
            self.prefix.close()
            self.prefix = None


class Left(NamedTuple):
    """Something that lies behind a block: the key of a block or tail, and its 1 to 256 tokens."""

    key: bytes
    token_ids: list[int]


class Ends:
    """What was left in memory, by the key of the block before it. Only a hint: it may have gone."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._left: OrderedDict[bytes, list[Left]] = OrderedDict()  # noted longest ago first

    def name(
        self,
        reuse: Reuse,
        index: int,
        block_id: int,
        *,
        key: bytes | None = None,
        num_tokens: int = BLOCK_TOKENS,
    ) -> None:
        """From now on block `index` of a sequence is found by its key, or by how it begins.

        key, num_tokens  of a tail
        """
        key = key or reuse.keys[index]
        self._pool.keep(block_id, key)
        self.note(reuse.parent(index), Left(key, reuse.tokens_behind(index)[:num_tokens]))

    def note(self, parent: bytes, left: Left) -> None:
        """It lies behind the block `parent` now."""
        others = [one for one in self._left.pop(parent, []) if one.key != left.key]
        self._left[parent] = [*others, left][-LEFT_OF_ONE:]
        if len(self._left) > PARENTS_MAX:
            self._left.popitem(last=False)

    def after(self, parent: bytes) -> Items[Left]:
        return self._left.get(parent, ())
