"""A GPU: the Launcher and the Arrays whose bytes lie in VRAM.

    compute     launches, graphs, write, copy: one stream, so each follows those before it
    near        read and fetch of the thread that launches
    behind      read of any other thread, beside the launches
                both wait for all that compute has been given when they begin, and for no more

Arrays are shadows (shadow.py): NumPy sees shape, strides and overlap, and address() finds the
bytes. All memory is taken at start; a step allocates nothing.
"""

import threading
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from kernels.arrays import Array, DeviceAbsent, DeviceError, DeviceFull, array_bytes
from kernels.cuda.attention import SCRATCH_BYTES
from kernels.cuda.build import NoNvcc, image
from kernels.cuda.driver import Driver, Graph
from kernels.cuda.host import CudaOps
from kernels.cuda.launch import Launch
from kernels.cuda.shadow import Shadows
from kernels.cuda.staging import Channel, Place, bytes_of, runs_of
from kernels.ops import U8


class GpuDevice:
    """kernels.arrays.Device and kernels.cuda.launch.Launcher over one GPU.

    name          as the driver says it
    sm            90 for an H100 or H200
    shared_bytes  the most shared memory that one block can have
    """

    def __init__(self, driver: Driver, kernels: bytes) -> None:
        """Raises DeviceAbsent, DeviceFull."""
        self.name, self.sm, self.shared_bytes = driver.name, driver.sm, driver.shared_bytes
        self.driver = driver
        driver.load(kernels)
        self._owner, self._is_closed = threading.get_ident(), False
        self.compute = driver.stream()
        self._drawn = driver.stream()  # on which a graph is drawn
        self._stream = self.compute  # of launches, now
        self._shadows = Shadows()
        self._writing = Channel(driver, self.compute)
        self._near, self._behind = (Channel(driver, driver.stream()) for _ in range(2))
        self._scratch, self._scratch_bytes = driver.allocate(SCRATCH_BYTES), SCRATCH_BYTES

    def launch(self, launch: Launch) -> None:
        """After all launches before it. Raises DeviceFull, DeviceLost."""
        assert launch.shared_bytes <= self.shared_bytes, (launch, self.shared_bytes)
        self.driver.launch(launch, self._stream)

    def address(self, array: Array) -> int:
        found = self._shadows.find(array.ctypes.data)
        assert found is not None, f"an array {array.shape} of {array.dtype} is not in VRAM"
        return found

    def reaches(self, array: Array) -> bool:
        return self._shadows.find(array.ctypes.data) is not None

    def scratch(self, num_bytes: int) -> int:
        """Raises DeviceFull: prepare() had been told of less."""
        if num_bytes > self._scratch_bytes:
            wanted, given = num_bytes >> 20, self._scratch_bytes >> 20
            raise DeviceFull(f"an op needs {wanted} MiB of scratch memory, {given} are reserved")
        return self._scratch

    def prepare(self, scratch_bytes: int) -> None:
        """At start: ops may want so much scratch memory. Raises DeviceFull, DeviceLost."""
        if scratch_bytes > self._scratch_bytes:
            self.driver.free(self._scratch)
            self._scratch_bytes = 0
            self._scratch = self.driver.allocate(scratch_bytes)
            self._scratch_bytes = scratch_bytes

    def reserve(self, shape: Sequence[int], dtype: npt.DTypeLike) -> Array:
        address = self.driver.allocate(array_bytes(shape, dtype))
        return self._shadows.cast(address, shape, dtype)

    def release(self, *arrays: Array) -> None:
        """Give reserved arrays back, none of which is in use: for measurements, not in a pool."""
        self.wait()
        for array in arrays:
            self.driver.free(self.address(array))
            self._shadows.forget(array.ctypes.data)

    def constant(self, values: Array) -> Array:
        array = self.reserve(values.shape, values.dtype)
        self.write(array, values)
        array.flags.writeable = False
        return array

    def write(self, target: Array, values: Array) -> None:
        run, (distances,) = runs_of(target)
        base = self.address(target)
        dense = np.ascontiguousarray(np.broadcast_to(values, target.shape), target.dtype)
        with self._writing.lock:
            self._writing.write(((base + d, run) for d in distances), bytes_of(dense))

    def read(self, array: Array) -> Array:
        if not self.reaches(array):
            return array
        out: Array = np.empty(array.shape, array.dtype)
        run, (distances,) = runs_of(array)
        base = self.address(array)
        self._download(((base + d, run) for d in distances), out)
        return out

    def fetch(self, out: Array, address: int) -> None:
        """out lies in RAM and is contiguous."""
        self._download([(address, out.nbytes)], out)

    def _download(self, places: Iterable[Place], out: Array) -> None:
        is_near = threading.get_ident() == self._owner
        channel = self._near if is_near else self._behind
        with channel.lock, self.driver.current():
            channel.after(self.compute)
            channel.read(places, bytes_of(out))

    def copy(self, target: Array, source: Array) -> None:
        run, (to, of) = runs_of(target, source)
        target_base, source_base = self.address(target), self.address(source)
        for begin, end in zip(to, of, strict=True):
            self.driver.move(target_base + begin, source_base + end, run, self.compute)

    def alias(self, memory: U8, address: int) -> None:
        """Kernels find what lies in this memory of the host at that address, from now on."""
        self._shadows.stand_for(address, memory.ctypes.data, memory.nbytes)

    def free_bytes(self) -> int:
        return self.driver.free_bytes()

    def wait(self) -> None:
        """Until all launches so far are done. Raises DeviceFull, DeviceLost."""
        self.driver.wait(self.compute)

    def draw(self, forward: Callable[[], None]) -> Graph:
        """The launches that forward makes, as one graph; none of them is done.

        Raises what forward raises, DeviceFull, DeviceLost.
        """
        self.driver.begin_capture(self._drawn)
        self._stream = self._drawn
        try:
            forward()
        except BaseException:
            self.driver.drop_capture(self._drawn)
            raise
        finally:
            self._stream = self.compute
        return self.driver.end_capture(self._drawn)

    def launch_graph(self, graph: Graph) -> None:
        """After all launches before it. Raises DeviceFull, DeviceLost."""
        self.driver.launch_graph(graph, self.compute)

    def close(self) -> None:
        """Give everything back; its arrays are void. In the thread that opened it, any number of
        times."""
        if self._is_closed:
            return
        self._is_closed = True
        for channel in (self._writing, self._near, self._behind):
            channel.close()
        del self.compute, self._stream, self._drawn
        self.driver.close()


def open_device() -> GpuDevice:
    """The GPU of this machine, with the kernels loaded. Raises DeviceAbsent, DeviceFull."""
    driver = Driver()
    try:
        return GpuDevice(driver, image())
    except NoNvcc as error:
        driver.close()
        raise DeviceAbsent(f"{driver.name}: its kernels are not compiled: {error}") from error
    except DeviceError:
        driver.close()
        raise


def device_ops(device: GpuDevice) -> CudaOps:
    """The ops of kernels.ops on this GPU."""
    return CudaOps(device)
