"""Ops of a real device for the tests of ops, whose arrays lie in RAM.

Each launch's arrays go to VRAM, whole as they were allocated, and come back after it: slow, and
right for any test.
"""

import numpy as np

from kernels.cuda.device import GpuDevice
from kernels.cuda.host import CudaOps
from kernels.cuda.launch import Array, Launch

ROOM_BYTES = 256 << 20


class RoundTrip:
    """A Launcher of kernels.cuda.launch around a device."""

    def __init__(self, device: GpuDevice) -> None:
        self._device = device
        self._room = device.reserve((ROOM_BYTES,), np.uint8)
        self._there: dict[int, tuple[Array, int]] = {}  # by address here: array, offset there
        self._used = 0

    def address(self, array: Array) -> int:
        root = array
        while isinstance(root.base, np.ndarray):
            root = root.base
        begin, end = np.lib.array_utils.byte_bounds(root)
        if begin not in self._there:
            here = np.ctypeslib.as_array(
                (np.ctypeslib.ctypes.c_ubyte * (end - begin)).from_address(begin)
            )
            place = self._room[self._used : self._used + here.size]
            assert place.size == here.size, f"a launch of more than {ROOM_BYTES} bytes"
            self._device.write(place, here)
            self._there[begin] = (root, self._used)
            self._used += -(-here.size // 256) * 256
        base = self._device.address(self._room)
        return base + self._there[begin][1] + array.ctypes.data - begin

    def launch(self, launch: Launch) -> None:
        self._device.launch(launch)
        for begin, (root, offset) in self._there.items():
            if root.flags.writeable:
                low, high = np.lib.array_utils.byte_bounds(root)
                back = self._device.read(self._room[offset : offset + high - low])
                np.ctypeslib.ctypes.memmove(begin, back.ctypes.data, back.size)
        self._there.clear()
        self._used = 0

    def scratch(self, num_bytes: int) -> int:
        return self._device.scratch(num_bytes)

    def reaches(self, array: Array) -> bool:
        return True

    def fetch(self, out: Array, address: int) -> None:
        self._device.fetch(out, address)


def round_trip_ops(device: GpuDevice) -> CudaOps:
    return CudaOps(RoundTrip(device))
