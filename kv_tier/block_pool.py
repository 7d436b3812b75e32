"""Which KV blocks are free, and how many sequences hold each of the others.

    free ──allocate──► held by 1 ──share──► held by 2 ...
      ▲                    │                    │
      └───────free─────────┴────────free────────┘     back on the list when nobody holds it

Invariants, checked by check():
  1. a block is on the free list exactly once, or held by at least one sequence
  2. free blocks + held blocks = num_blocks

The list is a stack: the block freed last is given out first, so that its memory is still warm
and the arena's resident part stays as small as the load allows.
"""

from collections.abc import Iterable


class OutOfBlocks(Exception):
    """More blocks were asked for than are free. Nothing was allocated."""

    def __init__(self, wanted: int, free: int) -> None:
        super().__init__(f"{wanted} KV blocks wanted, {free} free")
        self.wanted = wanted
        self.free = free


class BlockPool:
    """The block ids [0, num_blocks) of one arena."""

    def __init__(self, num_blocks: int) -> None:
        assert num_blocks >= 1, num_blocks
        self.num_blocks = num_blocks
        self._holders: list[int] = [0] * num_blocks
        self._free: list[int] = list(range(num_blocks - 1, -1, -1))

    @property
    def num_free(self) -> int:
        return len(self._free)

    def allocate(self, count: int) -> list[int]:
        """`count` free blocks, each now held once.   Raises OutOfBlocks, and then takes none."""
        assert count >= 0, count
        if count > len(self._free):
            raise OutOfBlocks(count, len(self._free))
        taken = [self._free.pop() for _ in range(count)]
        for block_id in taken:
            assert self._holders[block_id] == 0, block_id
            self._holders[block_id] = 1
        return taken

    def share(self, block_ids: Iterable[int]) -> None:
        """One more holder for each of these held blocks."""
        for block_id in block_ids:
            assert self._holders[block_id] >= 1, f"block {block_id} is free and cannot be shared"
            self._holders[block_id] += 1

    def free(self, block_ids: Iterable[int]) -> None:
        """One holder less for each; a block that nobody holds any more can be allocated again."""
        for block_id in block_ids:
            assert self._holders[block_id] >= 1, f"block {block_id} is freed twice"
            self._holders[block_id] -= 1
            if self._holders[block_id] == 0:
                self._free.append(block_id)

    def holders(self, block_id: int) -> int:
        """How many sequences hold this block; 0 is free."""
        return self._holders[block_id]

    def check(self) -> None:
        """Assert the invariants."""
        free = set(self._free)
        assert len(free) == len(self._free), "a block is on the free list twice"
        for block_id, holders in enumerate(self._holders):
            assert holders >= 0, (block_id, holders)
            assert (holders == 0) == (block_id in free), (block_id, holders, block_id in free)
