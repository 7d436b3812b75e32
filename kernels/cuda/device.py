"""A GPU: the Launcher whose arrays lie in VRAM.

    device = open_device(scratch_bytes=...)      raises DeviceAbsent, DeviceFull
    kv = device.array(shape, np.float16)         VRAM; NumPy sees shape and strides, never the bytes
    device.hold(arrays)                          weights: copied to VRAM once, found by address()
    device.read(kv[7])  device.write(kv[7], x)   over PCIe, after and before the launches around it
    device.copy(kv[7], kv[3])                    inside VRAM
    device.behind.read(kv[7])                    from another thread, beside the launches

An array of a device is a range of addresses that the host reserves and may not touch (reading it
ends the process); address() turns its place in that range into a place in VRAM. So shapes, strides
and overlap are checked as for any other array. Launches belong to one thread.
"""

from collections.abc import Iterable
from typing import Any, Protocol

import numpy.typing as npt

from kernels.cuda.launch import Array, Launcher


class Channel(Protocol):
    """Copies over PCIe, in order; one thread at a time, whichever."""

    def read(self, array: Array) -> Array:
        """A copy in RAM, as all launches and copies so far leave it. Raises DeviceLost."""

    def write(self, array: Array, source: Array) -> None:
        """Before all launches from now on; source may change at once. Raises DeviceLost."""


class Device(Launcher, Channel, Protocol):
    """One GPU. Launches and its own read and write belong to one thread."""

    name: str
    behind: Channel

    def array(self, shape: tuple[int, ...], value: npt.DTypeLike) -> Array:
        """Room in VRAM, at start only; its numbers may be anything. Raises DeviceFull."""

    def hold(self, arrays: Iterable[Array]) -> None:
        """Copy what never changes to VRAM. Raises DeviceFull."""

    def copy(self, target: Array, source: Array) -> None:
        """Both in VRAM, of one size, contiguous; in order with the launches."""

    def wait(self) -> None:
        """Until all launches so far are done. Raises DeviceLost."""

    def memory(self) -> tuple[int, int]:
        """Bytes of VRAM: (free, in all)."""

    def close(self) -> None:
        """Give everything back; arrays are void."""


def open_device(scratch_bytes: int = 0, **_: Any) -> Device:
    """The GPU of this machine. Raises DeviceAbsent, DeviceFull."""
    from kernels.cuda.errors import DeviceAbsent

    raise DeviceAbsent("the driver's side is not there yet")
