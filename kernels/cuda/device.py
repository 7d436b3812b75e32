"""A GPU: the Launcher whose arrays lie in VRAM."""

from kernels.arrays import DeviceAbsent


def open_device() -> None:
    """The GPU of this machine. Raises DeviceAbsent, DeviceFull."""
    raise DeviceAbsent("the driver's side is not there yet")
