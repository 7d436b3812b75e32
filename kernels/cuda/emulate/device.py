"""An emulated GPU with memory of its own: kernels find nothing but what was put there.

    this process    shadow of KV | shadow of weights | step's arrays
                         │                  │                 │ copied for one launch
    its memory           ▼                  ▼                 ▼ and never written back
                        KV               weights       room until the launch

So what holds for a real GPU holds here: whoever looks into an array of the device ends the process,
and a result that nobody fetched is not there. A launch returns when all is done.

FAKE_CUDA, as for driver.cpp: memory_mib=1024, and faults that begin when a file is there:
full_if=PATH  launch_error_if=PATH  lost_if=PATH
"""

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from kernels.arrays import DeviceAbsent, DeviceError, DeviceFull, DeviceLost, array_bytes
from kernels.cuda.emulate.build import NoCompiler, library
from kernels.cuda.emulate.host import EmulatedLauncher
from kernels.cuda.launch import Array, Launch
from kernels.cuda.shadow import Shadows

MEMORY_MIB: Final = 4096
ALIGNMENT: Final = 256  # of what is reserved, as on a GPU
FAULTS: Final[dict[str, tuple[type[DeviceError], str]]] = {
    "full_if": (DeviceFull, "GPU memory is full"),
    "launch_error_if": (DeviceLost, "the GPU failed: a launch"),
    "lost_if": (DeviceLost, "the GPU failed: it has fallen off the bus"),
}


class EmulatedDevice:
    """kernels.arrays.Device and kernels.cuda.launch.Launcher."""

    name = "emulated GPU"

    def __init__(self, path: Path, order: str = "forward", settings: str = "") -> None:
        """path: of the compiled kernels.   settings: as FAKE_CUDA"""
        said = dict(one.split("=", 1) for one in settings.split(",") if "=" in one)
        self._launcher = EmulatedLauncher(path, order)
        self._shadows = Shadows()
        self._memory: list[Array] = []
        self._free_bytes = int(said.get("memory_mib", MEMORY_MIB)) << 20
        self._faults = {name: Path(said[name]) for name in FAULTS if name in said}
        self._sent: list[Array] = []  # of the launch that is being put together

    def reserve(self, shape: Sequence[int], dtype: npt.DTypeLike) -> Array:
        num_bytes = -(-array_bytes(shape, dtype) // ALIGNMENT) * ALIGNMENT
        self._look("full_if")
        if num_bytes > self._free_bytes:
            wanted, free = num_bytes >> 20, self._free_bytes >> 20
            raise DeviceFull(f"GPU memory is full: {wanted} MiB wanted, {free} are free")
        self._free_bytes -= num_bytes
        piece = np.zeros(num_bytes + ALIGNMENT, np.uint8)
        self._memory.append(piece)
        begin = -(-piece.ctypes.data // ALIGNMENT) * ALIGNMENT
        return self._shadows.cast(begin, shape, dtype)

    def constant(self, values: Array) -> Array:
        array = self.reserve(values.shape, values.dtype)
        self.write(array, values)
        array.flags.writeable = False
        return array

    def read(self, array: Array) -> Array:
        self._look("lost_if")
        return self._there(array).copy() if self.reaches(array) else array

    def write(self, target: Array, values: Array) -> None:
        self._look("lost_if")
        self._there(target)[...] = values

    def copy(self, target: Array, source: Array) -> None:
        self._look("lost_if")
        self._there(target)[...] = self._there(source)

    def free_bytes(self) -> int:
        return self._free_bytes

    def launch(self, launch: Launch) -> None:
        """Raises DeviceFull, DeviceLost, KernelStuck."""
        for fault in self._faults:
            self._look(fault)
        self._launcher.launch(launch)
        self._sent.clear()

    def address(self, array: Array) -> int:
        found = self._shadows.find(array.ctypes.data)
        if found is None:
            self._sent.append(array.copy())
            found = int(self._sent[-1].ctypes.data)
        return found

    def reaches(self, array: Array) -> bool:
        return self._shadows.find(array.ctypes.data) is not None

    def scratch(self, num_bytes: int) -> int:
        return self._launcher.scratch(num_bytes)

    def fetch(self, out: Array, address: int) -> None:
        self._look("lost_if")
        self._launcher.fetch(out, address)

    def _there(self, array: Array) -> Array:
        """The same array where its bytes are."""
        begin = self._shadows.find(array.ctypes.data)
        assert begin is not None, f"an array {array.shape} of {array.dtype} is not the device's"
        assert all(stride >= 0 for stride in array.strides), array.strides
        last = sum((n - 1) * stride for n, stride in zip(array.shape, array.strides, strict=True))
        if not array.size:
            return np.empty(array.shape, array.dtype)
        raw = (ctypes.c_ubyte * (last + array.itemsize)).from_address(begin)
        there: Array = np.ndarray(array.shape, array.dtype, raw, 0, array.strides)
        return there

    def _look(self, fault: str) -> None:
        path = self._faults.get(fault)
        if path is not None and path.exists():
            error, text = FAULTS[fault]
            raise error(text)


def open_emulated(order: str = "forward") -> EmulatedDevice:
    """With the settings of FAKE_CUDA. Raises DeviceAbsent when there is no compiler."""
    try:
        return EmulatedDevice(library(), order, os.environ.get("FAKE_CUDA", ""))
    except NoCompiler as error:
        raise DeviceAbsent(str(error)) from error
