"""The CUDA driver as this program needs it: PyCUDA and, by ctypes, the graphs that it lacks.

No other file touches PyCUDA, which has no types: its objects are Any here, and addresses are ints.
Whatever the driver refuses becomes an error of kernels.arrays, with the driver's own words.

The context is the device's primary one, current in the thread that makes a Driver; other threads
enter it with `with driver.current():`, and leave it again, or PyCUDA ends the process.
"""

import atexit
import ctypes
import gc
import importlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from kernels.arrays import DeviceAbsent, DeviceFull, DeviceLost
from kernels.cuda.launch import Array, Launch
from kernels.ops import U8

Stream = Any  # pycuda.driver.Stream
Event = Any  # pycuda.driver.Event
Graph = ctypes.c_void_p  # CUgraphExec

OLDEST_GPU: Final = (8, 0)  # of cp.async and int8 tensor cores
RELAXED: Final = 2  # CU_STREAM_CAPTURE_MODE_RELAXED: other streams may work meanwhile
PLAIN_SHARED: Final = 48 << 10  # of a block's shared memory; more has to be asked for


class Driver:
    """GPU 0 of this process (CUDA_VISIBLE_DEVICES says which one that is).

    name          as the driver says it
    sm            its generation, 90 for an H100 or H200
    shared_bytes  the most shared memory that one block can have
    clock_hz      its highest clock
    """

    def __init__(self) -> None:
        """Raises DeviceAbsent."""
        self._cuda = _pycuda()
        try:
            self._cuda.init()
            device = self._cuda.Device(0)
            self._context = device.retain_primary_context()
            self._context.push()
        except self._cuda.Error as error:
            raise DeviceAbsent(f"the driver gives none: {error}") from error
        atexit.register(self.close)  # PyCUDA aborts a process that ends with a context
        self._owner = threading.get_ident()
        self._libcuda = ctypes.CDLL("libcuda.so.1")
        self._module: Any = None
        self._functions: dict[str, Any] = {}
        self._memory: dict[int, Any] = {}  # by address
        self.name = str(device.name())
        self.sm = int("".join(map(str, device.compute_capability())))
        attribute = self._cuda.device_attribute
        self.shared_bytes = int(device.get_attribute(attribute.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN))
        self.multiprocessors = int(device.get_attribute(attribute.MULTIPROCESSOR_COUNT))
        self.clock_hz = 1000 * int(device.get_attribute(attribute.CLOCK_RATE))
        if device.compute_capability() < OLDEST_GPU:
            self.close()
            raise DeviceAbsent(f"{self.name} is sm_{self.sm}; the kernels need sm_80 or later")

    @contextmanager
    def current(self) -> Iterator[None]:
        """The context is this thread's, whichever it is."""
        if threading.get_ident() == self._owner:
            yield
            return
        self._context.push()
        try:
            yield
        finally:
            self._context.pop()

    @contextmanager
    def telling(self, what: str) -> Iterator[None]:
        """Errors of the driver within are DeviceFull or DeviceLost, and say what was done."""
        try:
            yield
        except self._cuda.MemoryError as error:
            raise DeviceFull(f"GPU memory is full: {what}: {error}") from error
        except self._cuda.Error as error:
            raise DeviceLost(f"the GPU failed: {what}: {error}") from error

    def load(self, image: bytes) -> None:
        """The kernels, compiled. Raises DeviceAbsent when this driver or GPU does not take them."""
        try:
            self._module = self._cuda.module_from_buffer(image)
        except self._cuda.Error as error:
            version = self._cuda.get_driver_version()
            said = f"driver {version // 1000}.{version % 1000 // 10} does not take the kernels"
            raise DeviceAbsent(f"{self.name}: {said}: {error}") from error

    def launch(self, launch: Launch, stream: Stream) -> None:
        """Raises DeviceFull, DeviceLost."""
        function = self._functions.get(launch.kernel)
        if function is None:
            function = self._function(launch.kernel)
        block = (launch.block, 1, 1)
        try:
            function._launch_kernel(
                launch.grid, block, launch.arguments, launch.shared_bytes, stream
            )
        except self._cuda.MemoryError as error:
            raise DeviceFull(f"GPU memory is full: {launch.kernel}: {error}") from error
        except self._cuda.Error as error:
            raise DeviceLost(f"the GPU failed: {launch.kernel}: {error}") from error

    def _function(self, kernel: str) -> Any:
        """With leave to use all shared memory that a block can have."""
        attribute = self._cuda.function_attribute
        with self.telling(kernel):
            function = self._module.get_function(kernel)
            static = function.get_attribute(attribute.SHARED_SIZE_BYTES)
            most = self.shared_bytes - static
            if most > PLAIN_SHARED:
                function.set_attribute(attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES, most)
        self._functions[kernel] = function
        return function

    def allocate(self, num_bytes: int) -> int:
        """Address of so many bytes of VRAM, whatever is in them. Raises DeviceFull, DeviceLost."""
        with self.telling(f"{num_bytes >> 20} MiB are wanted, {self.free_bytes() >> 20} are free"):
            allocation = self._cuda.mem_alloc(max(num_bytes, 1))
        self._memory[int(allocation)] = allocation
        return int(allocation)

    def free(self, address: int) -> None:
        """What allocate gave."""
        with self.telling("giving memory back"):
            self._memory.pop(address).free()

    def pinned(self, num_bytes: int) -> U8:
        """Memory of the host that the GPU reaches by itself. Raises DeviceFull, DeviceLost."""
        with self.telling(f"{num_bytes >> 20} MiB of pinned memory"):
            memory: U8 = self._cuda.pagelocked_empty(num_bytes, "uint8")
        return memory

    def free_bytes(self) -> int:
        """Of VRAM."""
        with self.telling("asking for free memory"):
            return int(self._cuda.mem_get_info()[0])

    def total_bytes(self) -> int:
        """Of VRAM."""
        with self.telling("asking for free memory"):
            return int(self._cuda.mem_get_info()[1])

    def stream(self) -> Stream:
        """A queue of its own, which waits for no other."""
        with self.telling("a stream"):
            return self._cuda.Stream(1)  # CU_STREAM_NON_BLOCKING

    def event(self, *, is_timed: bool = False) -> Event:
        """Not recorded yet; timed ones can be subtracted."""
        flags = 0 if is_timed else int(self._cuda.event_flags.DISABLE_TIMING)
        with self.telling("an event"):
            return self._cuda.Event(flags)

    def record(self, event: Event, stream: Stream) -> None:
        """It happens when all that the stream was given before is done."""
        with self.telling("recording an event"):
            event.record(stream)

    def after(self, stream: Stream, event: Event) -> None:
        """What the stream is given from now on waits for the event."""
        with self.telling("waiting for an event"):
            stream.wait_for_event(event)

    def wait(self, waited: Any) -> None:
        """Until this event has happened, or all of this stream is done. Raises DeviceLost."""
        with self.telling("waiting for the GPU"):
            waited.synchronize()

    def seconds(self, begin: Event, end: Event) -> float:
        """Between two timed events that have happened."""
        with self.telling("subtracting events"):
            return float(end.time_since(begin)) / 1000

    def upload(self, address: int, source: Array, stream: Stream) -> None:
        """From pinned memory."""
        with self.telling("a copy to the GPU"):
            self._cuda.memcpy_htod_async(address, source, stream)

    def download(self, target: Array, address: int, stream: Stream) -> None:
        """To pinned memory."""
        with self.telling("a copy from the GPU"):
            self._cuda.memcpy_dtoh_async(target, address, stream)

    def move(self, target: int, source: int, num_bytes: int, stream: Stream) -> None:
        """Inside VRAM."""
        with self.telling("a copy inside the GPU"):
            self._cuda.memcpy_dtod_async(target, source, num_bytes, stream)

    def begin_capture(self, stream: Stream) -> None:
        """What the stream is given from now on is written down, not done."""
        self._call("cuStreamBeginCapture_v2", ctypes.c_void_p(stream.handle), RELAXED)

    def end_capture(self, stream: Stream) -> Graph:
        """All of it as one thing to launch. Raises DeviceFull, DeviceLost."""
        drawn, graph = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuStreamEndCapture", ctypes.c_void_p(stream.handle), ctypes.byref(drawn))
        flags = ctypes.c_ulonglong(0)
        try:
            self._call("cuGraphInstantiateWithFlags", ctypes.byref(graph), drawn, flags)
        finally:
            self._call("cuGraphDestroy", drawn)
        return graph

    def drop_capture(self, stream: Stream) -> None:
        """End a capture that is not wanted any more."""
        drawn = ctypes.c_void_p()
        self._libcuda.cuStreamEndCapture(ctypes.c_void_p(stream.handle), ctypes.byref(drawn))
        if drawn:
            self._libcuda.cuGraphDestroy(drawn)

    def launch_graph(self, graph: Graph, stream: Stream) -> None:
        """Raises DeviceFull, DeviceLost."""
        self._call("cuGraphLaunch", graph, ctypes.c_void_p(stream.handle))

    def destroy_graph(self, graph: Graph) -> None:
        """It is not running."""
        self._call("cuGraphExecDestroy", graph)

    def _call(self, name: str, *arguments: Any) -> None:
        result = self._libcuda[name](*arguments)
        if result:
            text = ctypes.c_char_p()
            self._libcuda.cuGetErrorString(result, ctypes.byref(text))
            said = f"{name} failed: {(text.value or b'').decode()} ({result})"
            if result == 2:  # CUDA_ERROR_OUT_OF_MEMORY
                raise DeviceFull(f"GPU memory is full: {said}")
            raise DeviceLost(f"the GPU failed: {said}")

    def close(self) -> None:
        """Give back the memory and the context; in the thread that made it, and once."""
        atexit.unregister(self.close)
        self._functions.clear()
        self._module = None
        self._memory.clear()
        gc.collect()
        self._context.pop()
        self._context = None


def _pycuda() -> Any:
    """The module pycuda.driver. Raises DeviceAbsent."""
    try:
        return importlib.import_module("pycuda.driver")
    except ModuleNotFoundError as error:
        if error.name not in ("pycuda", "pycuda.driver"):
            raise
        raise DeviceAbsent("PyCUDA is not installed: pip install 'lockstep[gpu]'") from error
    except ImportError as error:
        if "libcuda" in str(error) and "undefined symbol" not in str(error):
            raise DeviceAbsent("no NVIDIA driver: libcuda.so.1 is missing") from error
        raise DeviceAbsent(f"the NVIDIA driver is too old for PyCUDA: {error}") from error
