"""What can be wrong with a GPU, each with one line that says it to a person.

    DeviceAbsent  there is none to be used: no driver, no PyCUDA, too old; before anything ran
    DeviceFull    its memory does not take what is wanted: at start, or in mid-step
    DeviceLost    it failed while it worked: nothing on it can be trusted any more

After DeviceLost, and after DeviceFull in mid-step, the process has to end: a new one begins afresh.
This file imports nothing, so that whoever catches needs no GPU.
"""


class DeviceAbsent(Exception):
    """No GPU that can be used; the text says why."""


class DeviceFull(Exception):
    """The GPU's memory is too small for this."""

    def __init__(self, wanted_bytes: int, free_bytes: int, what: str) -> None:
        wanted, free = wanted_bytes >> 20, free_bytes >> 20
        super().__init__(f"GPU memory is full: {what} needs {wanted} MiB, {free} are free")
        self.wanted_bytes, self.free_bytes = wanted_bytes, free_bytes


class DeviceLost(Exception):
    """A launch or a copy failed; the text names it and what the driver said."""
