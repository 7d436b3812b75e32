"""The memory of all KV blocks, or of all state slots: one reserved range of addresses, filled by
the kernel page by page.

Nothing is resident until a block is written, so a big arena costs an idle node nothing.
block_id * block_bytes is a block's offset, always.
"""

import mmap
from collections.abc import Sequence
from math import prod
from typing import Final, Generic, TypeVar

import numpy as np
import numpy.typing as npt

Value = TypeVar("Value", bound=np.generic)
MAP_NORESERVE: Final = 0x4000  # Linux's value; the mmap module names it from Python 3.13 on


class ArenaRefused(Exception):
    """The system would not reserve so many bytes of addresses."""

    def __init__(self, arena_bytes: int, reason: str) -> None:
        super().__init__(f"the system refused {arena_bytes >> 20} MiB for KV and state: {reason}")
        self.arena_bytes = arena_bytes


class Arena(Generic[Value]):
    """One anonymous mapping, seen as an array.

    blocks       shape and type as given; index 0 is the block id; zeros until written
    block_bytes  size of one block
    """

    def __init__(self, shape: Sequence[int], value: type[Value]) -> None:
        """shape[0] is the number of blocks.   Raises ArenaRefused."""
        assert len(shape) >= 2 and min(shape) >= 1, shape
        self.block_bytes = prod(shape[1:]) * np.dtype(value).itemsize
        arena_bytes = self.block_bytes * shape[0]
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
        try:
            self._map = mmap.mmap(-1, arena_bytes, flags=flags)
        except (OSError, OverflowError, ValueError) as error:
            raise ArenaRefused(arena_bytes, str(error)) from error
        _advise_huge_pages(self._map)
        flat: npt.NDArray[Value] = np.frombuffer(self._map, value)
        self.blocks = flat.reshape(tuple(shape))

    def release(self) -> None:
        """Give all memory back; blocks read as zeros again. Nothing may be running."""
        self._map.madvise(mmap.MADV_DONTNEED)


def _advise_huge_pages(mapping: mmap.mmap) -> None:
    """2 MiB pages where the system has them: attention then misses the TLB far less often."""
    try:
        mapping.madvise(mmap.MADV_HUGEPAGE)
    except OSError:
        return  # a kernel built without transparent huge pages: slower, not wrong
