"""What the measurements share: the device with its ops, its clock, and arrays to work on."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median

import numpy as np

from ingest.command.bench.gpu.plan import Plan
from kernels.arrays import Array
from kernels.cuda.device import GpuDevice
from kernels.cuda.host import CudaOps
from kernels.ops import F32, QuantizedRows, quantized_rows


@dataclass(frozen=True, slots=True)
class Bench:
    """One run on one device."""

    plan: Plan
    device: GpuDevice
    ops: CudaOps

    def gpu_seconds(self, work: Callable[[], object], rounds: int = 0) -> float:
        """Median time between two events around the work, the first time not counted."""
        driver, times = self.device.driver, []
        begin, end = (driver.event(is_timed=True) for _ in range(2))
        for _ in range((rounds or self.plan.sizes.rounds) + 1):
            driver.record(begin, self.device.compute)
            work()
            driver.record(end, self.device.compute)
            driver.wait(end)
            times.append(driver.seconds(begin, end))
        return max(median(times[1:]), 1e-9)

    def drawn_seconds(self, work: Callable[[], None]) -> float:
        """The same of the work as one graph: without what the host takes to launch it."""
        work()  # loads the kernels
        graph = self.device.draw(work)
        try:
            return self.gpu_seconds(lambda: self.device.launch_graph(graph))
        finally:
            self.device.wait()
            self.device.driver.destroy_graph(graph)

    def random(self, *shape: int) -> F32:
        """Activations of size 1, in VRAM."""
        values = np.random.default_rng(sum(shape)).standard_normal(shape, np.float32)
        array = self.device.reserve(shape, np.float32)
        self.device.write(array, values)
        return array

    @contextmanager
    def product(self, tokens: int, rows: int, cols: int) -> Iterator[tuple[F32, QuantizedRows]]:
        """(tokens, rows) for a product, and its input (tokens, cols); given back afterwards, for
        the model is to fit beside it."""
        out, values = self.device.reserve((tokens, rows), np.float32), self.random(tokens, cols)
        x = quantized_rows(tokens, cols, self.device)
        self.ops.quantize_rows(x, values)
        try:
            yield out, x
        finally:
            self.device.release(out, values, x.values, x.scales, x.sums)

    def filled(self, shape: Sequence[int], values: Array) -> Array:
        """Room in VRAM with these values over and over, copied inside it."""
        array = self.device.reserve(shape, values.dtype)
        flat, begin = array.reshape(-1), min(values.size, array.size)
        self.device.write(flat[:begin], values.reshape(-1)[:begin])
        while begin < flat.size:
            count = min(begin, flat.size - begin)
            self.device.copy(flat[begin : begin + count], flat[:count])
            begin += count
        return array
