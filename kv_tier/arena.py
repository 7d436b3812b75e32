"""The memory of all KV blocks, or of all state slots: one reserved range of addresses, filled by
the kernel page by page, or block by block from files.

    block 0     | block 1       | block 2     | block 3 ...        block_id * block_bytes is a
    anonymous   | mapped file   | anonymous   |                    block's offset, always

Nothing is resident until a block is written, so a big arena costs an idle node nothing. A mapped
block is the file's pages, read-only: no store through this mapping ever reaches a file, it would
end the process instead. Who wants to write to such a block unmaps it first.
"""

import ctypes
import mmap
import os
from collections.abc import Iterable, Iterator, Sequence
from math import prod
from typing import Final, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from kv_tier.mapping import LIBC, MAP_FAILED

Value = TypeVar("Value", bound=np.generic)
MAP_FIXED: Final = 0x10  # Linux's values; the mmap module does not name them before Python 3.13
MAP_NORESERVE: Final = 0x4000
MOVE: Final = 1 | 2 | 4  # MREMAP_MAYMOVE, FIXED, DONTUNMAP
OWN_MEMORY: Final = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE


class ArenaRefused(Exception):
    """The system would not reserve so many bytes of addresses."""

    def __init__(self, arena_bytes: int, reason: str) -> None:
        super().__init__(f"the system refused {arena_bytes >> 20} MiB for KV and state: {reason}")
        self.arena_bytes = arena_bytes


class MapRefused(Exception):
    """The system would not map a file into a block. The block is as it was, but its bytes."""

    def __init__(self, block_id: int, reason: str) -> None:
        super().__init__(f"the system refused to map a file as block {block_id}: {reason}")
        self.block_id = block_id


class Arena(Generic[Value]):
    """One range of addresses, seen as an array.

    blocks       shape and type as given; index 0 is the block id; zeros until written
    block_bytes  size of one block
    """

    def __init__(self, shape: Sequence[int], value: type[Value]) -> None:
        """shape[0] is the number of blocks.   Raises ArenaRefused."""
        assert len(shape) >= 2 and min(shape) >= 1, shape
        self.block_bytes = prod(shape[1:]) * np.dtype(value).itemsize
        arena_bytes = self.block_bytes * shape[0]
        try:
            self._map = mmap.mmap(-1, arena_bytes, flags=OWN_MEMORY)
        except (OSError, OverflowError, ValueError) as error:
            raise ArenaRefused(arena_bytes, str(error)) from error
        _advise_huge_pages(self._map)
        flat: npt.NDArray[Value] = np.frombuffer(self._map, value)
        self.blocks = flat.reshape(tuple(shape))
        self._address = self.blocks.ctypes.data
        self._mapped: set[int] = set()

    @property
    def can_map(self) -> bool:
        """Whether blocks begin and end at pages, so that files can be mapped."""
        return self.block_bytes % mmap.PAGESIZE == 0

    @property
    def num_mapped(self) -> int:
        return len(self._mapped)

    def is_mapped(self, block_id: int) -> bool:
        return block_id in self._mapped

    def map_file(self, block_id: int, fd: int, offset: int, *, address: int | None = None) -> None:
        """The block is these bytes of the file from now on, read-only; fd may be closed.

        address  of another mapping of these bytes: pages that it has brought in are moved here,
                 which then need not be found one by one; it may be used and unmapped as before

        The file must never be cut short while it is mapped.   Raises MapRefused.
        """
        assert self.can_map and offset % mmap.PAGESIZE == 0, (self.block_bytes, offset)
        missing = offset + self.block_bytes - os.fstat(fd).st_size
        if missing > 0:  # a read behind a file's end would end the process
            raise MapRefused(block_id, f"the file lacks {missing} bytes")
        if address is None or not self._move(block_id, address):
            reason = self._place(block_id, mmap.PROT_READ, mmap.MAP_SHARED, fd, offset)
            if reason:
                self.unmap(block_id)  # the refused call may have left a hole
                raise MapRefused(block_id, reason)
        self._mapped.add(block_id)

    def unmap(self, block_id: int) -> None:
        """The block is memory of our own again: zeros, writable."""
        reason = self._place(block_id, mmap.PROT_READ | mmap.PROT_WRITE, OWN_MEMORY, -1, 0)
        if reason:
            raise ArenaRefused(self.block_bytes, reason)
        self._mapped.discard(block_id)
        begin = self._address + block_id * self.block_bytes
        LIBC.madvise(begin, self.block_bytes, mmap.MADV_HUGEPAGE)  # refused: slower, not wrong

    def discard(self, block_ids: Iterable[int]) -> None:
        """Give the memory of these blocks back; they read as zeros. Mapped ones are unmapped."""
        own: list[int] = []
        for block_id in block_ids:
            if block_id in self._mapped:
                self.unmap(block_id)
            else:
                own.append(block_id)
        for begin, end in _runs(sorted(own)):
            self._forget(begin * self.block_bytes, end * self.block_bytes)

    def release(self) -> None:
        """Give all memory back; blocks read as zeros again. Nothing may be running."""
        for block_id in list(self._mapped):
            self.unmap(block_id)
        self._map.madvise(mmap.MADV_DONTNEED)

    def _place(self, block_id: int, protection: int, flags: int, fd: int, offset: int) -> str:
        """mmap at the block's place; "" or why not."""
        assert 0 <= block_id < len(self.blocks), block_id
        begin = self._address + block_id * self.block_bytes
        flags |= MAP_FIXED
        if LIBC.mmap(begin, self.block_bytes, protection, flags, fd, offset) == MAP_FAILED:
            return os.strerror(ctypes.get_errno())
        return ""

    def _move(self, block_id: int, address: int) -> bool:
        """A mapping's pages to the block's place, where it is mapped from now on, too.

        False: a system before Linux 5.13 cannot; what was there may be gone.
        """
        begin = self._address + block_id * self.block_bytes
        size = self.block_bytes
        return bool(LIBC.mremap(address, size, size, MOVE, begin) == begin)

    def _forget(self, begin: int, end: int) -> None:
        """Whole pages of the bytes [begin, end)."""
        begin = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE
        size = end // mmap.PAGESIZE * mmap.PAGESIZE - begin
        if size > 0:
            self._map.madvise(mmap.MADV_DONTNEED, begin, size)


def _runs(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """[begin, end) of each run of neighbours; ascending."""
    begin = 0
    for index in range(1, len(numbers) + 1):
        if index == len(numbers) or numbers[index] != numbers[index - 1] + 1:
            yield numbers[begin], numbers[index - 1] + 1
            begin = index


def _advise_huge_pages(mapping: mmap.mmap) -> None:
    """2 MiB pages where the system has them: attention then misses the TLB far less often."""
    try:
        mapping.madvise(mmap.MADV_HUGEPAGE)
    except OSError:
        return  # a kernel built without transparent huge pages: slower, not wrong
