"""Where the arrays of the ops lie: in this process's memory, or in a device's.

An array of a device is addresses to this process: it has shape, type and strides, so that hosts can
check it, but whoever looks into it ends the process. Its bytes move by read, write and copy alone.

All room is reserved at start; a step allocates nothing.
"""

from collections.abc import Sequence
from math import prod
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class DeviceError(Exception):
    """A device cannot do its work; the text is one line for a person."""


class DeviceAbsent(DeviceError):
    """There is none, or none that this program can use."""


class DeviceFull(DeviceError):
    """Its memory does not hold what is wanted."""


class DeviceLost(DeviceError):
    """It fails in its work: a launch, a copy, or the device itself. What it holds is gone."""


class Arrays(Protocol):
    """One kind of memory. Launches, write and copy follow each other in the order of their calls.

    reserve, constant, write, copy  by the thread that launches
    read                            by any
    """

    def reserve(self, shape: Sequence[int], dtype: npt.DTypeLike) -> Array:
        """Room for an array, whatever is in it.   Raises DeviceFull"""

    def constant(self, values: Array) -> Array:
        """An array of these values, which nobody writes to.   Raises DeviceFull, DeviceLost"""

    def read(self, array: Array) -> Array:
        """Its values, once all before this call is done: a copy, or the array itself if it is here.

        Raises DeviceLost.
        """

    def write(self, target: Array, values: Array) -> None:
        """target[...] = values, which are here and may change afterwards.   Raises DeviceLost"""

    def copy(self, target: Array, source: Array) -> None:
        """target[...] = source, both of this memory.   Raises DeviceLost"""


class Device(Arrays, Protocol):
    """Memory of a processor other than this one.   name: the processor's, for a person"""

    name: str

    def free_bytes(self) -> int:
        """What reserve can still give, all in all."""


class HostArrays:
    """This process's memory. What is reserved costs nothing until it is written."""

    def reserve(self, shape: Sequence[int], dtype: npt.DTypeLike) -> Array:
        array: Array = np.zeros(tuple(shape), dtype)
        return array

    def constant(self, values: Array) -> Array:
        return values

    def read(self, array: Array) -> Array:
        return array

    def write(self, target: Array, values: Array) -> None:
        target[...] = values

    def copy(self, target: Array, source: Array) -> None:
        target[...] = source


HOST = HostArrays()


def array_bytes(shape: Sequence[int], dtype: npt.DTypeLike) -> int:
    """What an array takes."""
    return prod(shape) * np.dtype(dtype).itemsize
