"""Launches emulated kernels: device memory is host memory, a launch returns when all is done."""

import ctypes
from pathlib import Path
from typing import Final

import numpy as np

from kernels.cuda.emulate.build import library
from kernels.cuda.host import CudaOps
from kernels.cuda.launch import Array, Launch
from kernels.ops import U8

ORDERS: Final = {"forward": 0, "backward": 1, "shuffled": 2}


class KernelStuck(Exception):
    """Some threads of a block wait for others that never come: the kernel is named."""


class EmulatedLauncher:
    """A Launcher of kernels.cuda.launch over a library of emulate.build.

    order  in which the threads of a block run: one of ORDERS
    """

    def __init__(self, path: Path, order: str = "forward") -> None:
        self._library = ctypes.CDLL(str(path))
        self._order = ORDERS[order]
        self._scratch: U8 = np.empty(0, np.uint8)

    def launch(self, launch: Launch) -> None:
        """Raises KernelStuck."""
        sizes = (ctypes.c_uint * 6)(*launch.grid, launch.block, 1, 1)
        kernel = self._library[f"{launch.kernel}__emulated"]
        shared = ctypes.c_size_t(launch.shared_bytes)
        if kernel(launch.arguments, sizes, shared, self._order):
            raise KernelStuck(f"{launch.kernel}: a barrier that not all threads reach")

    def address(self, array: Array) -> int:
        return int(array.ctypes.data)

    def scratch(self, num_bytes: int) -> int:
        """Room until the next call, full of garbage."""
        if self._scratch.size < num_bytes:
            self._scratch = np.empty(num_bytes, np.uint8)
        self._scratch[:num_bytes] = 0xA5
        return int(self._scratch.ctypes.data)

    def reaches(self, array: Array) -> bool:
        return True

    def fetch(self, out: Array, address: int) -> None:
        ctypes.memmove(out.ctypes.data, address, out.nbytes)


def emulated_ops(order: str = "forward") -> CudaOps:
    """The ops of kernels.ops by the CUDA source on the CPU. Raises NoCompiler."""
    return CudaOps(EmulatedLauncher(library(), order))
