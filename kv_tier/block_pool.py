"""Which KV blocks are free, how many sequences hold each of the others, and what is in them.

    free ──allocate──► held by 1 ──hold──► held by 2 ...
      ▲                    │                    │
      │                    └───────free─────────┘  the last holder leaves
      ├──── without a key ─────────┤
      │                            └ with one ──► cached ──hold──► held by 1, as it was
      └──────────────── allocate, the one left longest ago ──┘

A key says what is in a block: keep(block, key) when it is complete, and find(key) gives it to
whoever begins with the same tokens. A block with a key is never written to.

Invariants, checked by check():
  1. a block is on the free list, or cached, or held by at least one; exactly one of them
  2. free + cached + held = num_blocks
  3. a key names one block and a block has one key at most; cached blocks have one, free blocks none

The free list is a stack: the block freed last is given out first, so that its memory is still warm
and the arena's resident part stays as small as the load allows. Cached blocks are given out when it
is empty, the one left longest ago first; so of a sequence the end goes before the beginning, since
free() takes them back to front.
"""

from collections import OrderedDict
from collections.abc import Sequence


class OutOfBlocks(Exception):
    """More blocks were asked for than are free. Nothing was allocated."""

    def __init__(self, wanted: int, free: int) -> None:
        super().__init__(f"{wanted} KV blocks wanted, {free} free")
        self.wanted = wanted
        self.free = free


class BlockPool:
    """The block ids [0, num_blocks) of one arena. find may be called from any thread, as a hint."""

    def __init__(self, num_blocks: int) -> None:
        assert num_blocks >= 1, num_blocks
        self.num_blocks = num_blocks
        self.num_dropped = 0  # cached blocks that were given out
        self._holders: list[int] = [0] * num_blocks
        self._free: list[int] = list(range(num_blocks - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()  # left longest ago first
        self._by_key: dict[bytes, int] = {}
        self._keys: dict[int, bytes] = {}

    @property
    def num_free(self) -> int:
        """Blocks that allocate could give: the free and the cached ones."""
        return len(self._free) + len(self._cached)

    @property
    def num_cached(self) -> int:
        return len(self._cached)

    def allocate(self, count: int) -> list[int]:
        """`count` blocks, each held once and without a key.   Raises OutOfBlocks, and takes none.

        Their bytes are whatever they were; one that was cached may still be a mapped file.
        """
        assert count >= 0, count
        if count > self.num_free:
            raise OutOfBlocks(count, self.num_free)
        taken = [self._free.pop() for _ in range(min(count, len(self._free)))]
        while len(taken) < count:
            taken.append(self._drop_oldest())
        for block_id in taken:
            assert self._holders[block_id] == 0 and block_id not in self._keys, block_id
            self._holders[block_id] = 1
        return taken

    def hold(self, block_id: int) -> None:
        """One more holder for a block that is held or cached."""
        if self._holders[block_id] == 0:
            assert block_id in self._cached, f"block {block_id} is free and cannot be held"
            del self._cached[block_id]
        self._holders[block_id] += 1

    def free(self, block_ids: Sequence[int]) -> None:
        """One holder less for each, the last first. A block that nobody holds any more is cached
        if it has a key, and free if not."""
        for block_id in reversed(block_ids):
            assert self._holders[block_id] >= 1, f"block {block_id} is freed twice"
            self._holders[block_id] -= 1
            if self._holders[block_id] > 0:
                continue
            if block_id in self._keys:
                self._cached[block_id] = None
            else:
                self._free.append(block_id)

    def keep(self, block_id: int, key: bytes) -> bool:
        """A held block is complete, and this is its key. False: another block has that key, or
        this one has its own already; then nothing changes."""
        assert self._holders[block_id] >= 1, f"block {block_id} is held by nobody"
        if key in self._by_key or block_id in self._keys:
            return False
        self._by_key[key] = block_id
        self._keys[block_id] = key
        return True

    def find(self, key: bytes) -> int | None:
        """The block of this key, held or cached."""
        return self._by_key.get(key)

    def forget(self, block_id: int) -> None:
        """The block has no key any more; a cached one is free."""
        key = self._keys.pop(block_id, None)
        if key is None:
            return
        del self._by_key[key]
        if block_id in self._cached:
            del self._cached[block_id]
            self._free.append(block_id)

    def cached_blocks(self) -> list[int]:
        """Those that have a key and no holder, the one left longest ago first."""
        return list(self._cached)

    def free_blocks(self) -> list[int]:
        """Those on the free list: nothing of theirs is wanted."""
        return list(self._free)

    def key_of(self, block_id: int) -> bytes | None:
        return self._keys.get(block_id)

    def holders(self, block_id: int) -> int:
        """How many hold this block; 0: it is free or cached."""
        return self._holders[block_id]

    def check(self) -> None:
        """Assert the invariants."""
        free, cached = set(self._free), set(self._cached)
        assert len(free) == len(self._free), "a block is on the free list twice"
        assert not free & cached, free & cached
        for block_id, holders in enumerate(self._holders):
            assert holders >= 0, (block_id, holders)
            is_free = block_id in free or block_id in cached
            assert (holders == 0) == is_free, (block_id, holders, is_free)
        assert cached <= self._keys.keys(), cached - self._keys.keys()
        assert not free & self._keys.keys(), free & self._keys.keys()
        named = {block_id: key for key, block_id in self._by_key.items()}
        assert named == self._keys and len(named) == len(self._by_key), "keys and blocks disagree"

    def _drop_oldest(self) -> int:
        """The block left longest ago, out of the cache."""
        block_id = next(iter(self._cached))
        self.forget(block_id)
        self.num_dropped += 1
        return self._free.pop()
