"""Arrays that are addresses only: each stands for a piece of a device's memory.

    this process   | shadow of A |   | shadow of B |          no page behind it, none readable
    device         |      A      | |      B      |            translate: begin of A + distance

A view of such an array is the same distance into the piece. Reading one here ends the process.
"""

import ctypes
import mmap
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from kernels.arrays import Array, DeviceFull, array_bytes

FLAGS: Final = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000  # MAP_NORESERVE on Linux
FAILED: Final = ctypes.c_void_p(-1).value


def _mmap() -> Any:
    function = ctypes.CDLL(None, use_errno=True).mmap
    pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    function.argtypes = (pointer, size, number, number, number, ctypes.c_int64)
    function.restype = pointer
    return function


MMAP: Final = _mmap()


class Shadows:
    """Which address here stands for which on the device. They live as long as the process."""

    def __init__(self) -> None:
        self._begins: list[int] = []  # ascending
        self._pieces: list[tuple[int, int]] = []  # (end here, begin on the device)

    def cast(self, device_address: int, shape: Sequence[int], dtype: npt.DTypeLike) -> Array:
        """The array that stands for the piece at device_address. Raises DeviceFull."""
        num_bytes = array_bytes(shape, dtype)
        begin = MMAP(None, max(num_bytes, 1), 0, FLAGS, -1, 0)
        if begin == FAILED:
            raise DeviceFull(f"no addresses for {num_bytes >> 20} MiB of a device's memory")
        self.stand_for(device_address, begin, num_bytes)
        raw: Any = (ctypes.c_ubyte * num_bytes).from_address(begin)
        array: Array = np.frombuffer(raw, np.dtype(dtype)).reshape(tuple(shape))
        return array

    def stand_for(self, device_address: int, begin: int, num_bytes: int) -> None:
        """Memory of this process, which may be readable, stands for that piece from now on."""
        index = bisect_right(self._begins, begin)
        self._begins.insert(index, begin)
        self._pieces.insert(index, (begin + num_bytes, device_address))

    def forget(self, begin: int) -> None:
        """The piece that begins here stands for nothing any more; its addresses stay taken."""
        index = self._begins.index(begin)
        del self._begins[index], self._pieces[index]

    def find(self, address: int) -> int | None:
        """Where that is on the device; None: it is this process's own."""
        index = bisect_right(self._begins, address) - 1
        if index < 0 or address >= self._pieces[index][0]:
            return None
        return self._pieces[index][1] + address - self._begins[index]
