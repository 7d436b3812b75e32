"""A launch of one kernel: its grid, its arguments as bytes, and who runs it.

Arguments travel as cuLaunchKernel takes them in one buffer: each at its natural alignment, 64 bits
for an array, 32 for an int or a float. Device (device.py) and emulation (emulate/host.py) differ in
where arrays lie and in who is called; grids and arguments are the same bytes for both.
"""

from dataclasses import dataclass
from struct import pack
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from kernels.cuda.geometry import up

Array = npt.NDArray[Any]
THREADS: Final = 256  # of an elementwise block


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel with its sizes.

    grid       blocks in x, y, z
    block      threads of each
    arguments  bytes of the parameter buffer
    """

    kernel: str
    grid: tuple[int, int, int]
    block: int
    shared_bytes: int
    arguments: bytes


class Launcher(Protocol):
    """Where kernels run."""

    def launch(self, launch: Launch) -> None:
        """After all launches before it."""

    def address(self, array: Array) -> int:
        """Where the kernels find this array's first number."""

    def scratch(self, num_bytes: int) -> int:
        """Room for what one op's kernels hand to each other; its bytes may be anything."""

    def reaches(self, array: Array) -> bool:
        """Whether kernels find it where it lies."""

    def fetch(self, out: Array, address: int) -> None:
        """out, which is the host's, gets the bytes at address, as the launches so far leave them.

        Raises DeviceLost.
        """


@dataclass(frozen=True, slots=True)
class Long:
    """A kernel's argument of 64 bits."""

    value: int


Argument = Array | Long | int | float


class Kernels:
    """Puts launches together for a Launcher."""

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher

    def run(
        self, kernel: str, grid: tuple[int, ...], block: int, *arguments: Argument, shared: int = 0
    ) -> None:
        """A plain int is 32 bits wide, a float is float32.   shared: bytes sized at launch"""
        form, values = "@", []
        for argument in arguments:
            value: int | float
            if isinstance(argument, np.ndarray):
                form, value = form + "Q", self._launcher.address(argument)
            elif isinstance(argument, Long):
                form, value = form + "q", argument.value
            else:
                form, value = form + ("f" if isinstance(argument, float) else "i"), argument
            values.append(value)
        x, y, z = (*grid, 1, 1)[:3]
        self._launcher.launch(Launch(kernel, (x, y, z), block, shared, pack(form, *values)))

    def each(self, kernel: str, n: int, *arguments: Argument) -> None:
        """One thread for each of n values."""
        self.run(kernel, (up(n, THREADS),), THREADS, *arguments)

    def scratch(self, num_bytes: int) -> Long:
        """Room for this op, as an argument."""
        return Long(self._launcher.scratch(num_bytes))

    def reaches(self, array: Array) -> bool:
        """Whether kernels find it where it lies."""
        return self._launcher.reaches(array)

    def fetch(self, out: Array, address: Long) -> None:
        """out, which is the host's, gets what lies there."""
        self._launcher.fetch(out, address.value)
