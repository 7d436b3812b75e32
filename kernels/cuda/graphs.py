"""One step on a GPU: its arrays in VRAM at a fixed place, and decode steps as CUDA graphs.

    step ──► | pinned slot 0 | 1 | 2 |  one of them, when its last copy is done
                     │ one copy, in the order of the launches
                     ▼
             the place in VRAM           kernels read it; so a graph may be launched again

A decode step (one token of each sequence, all of their logits) makes the same launches whatever its
tokens are: grids depend on the number of sequences, and on the longest context through the number
of its stripes alone. So it is drawn once for each (sequences, blocks of the longest, rounded up to
a power of two), with positions at the bucket's end, and from then on is one call. Stripes past a
sequence's end are blocks of a grid that return at once.

The first step of a bucket is not drawn: it loads kernels and lets tables grow.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from kernels.cuda.device import GpuDevice
from kernels.cuda.driver import Graph
from kernels.ops import BLOCK_TOKENS, F32, I32, U8, Step

Forward = Callable[[Step, Callable[[], None]], F32]  # (step, after_layer) -> logits
Key = tuple[int, int]  # sequences, blocks of the longest

SLOTS: Final = 3
MAX_GRAPHS: Final = 64
SMALLEST_BLOCKS: Final = 4  # of a bucket: 1024 positions


@dataclass(frozen=True, slots=True)
class StepSizes:
    """What a step's arrays take, one behind the other, each at a multiple of 16 bytes."""

    tokens: int
    sequences: int
    blocks: int
    logit_rows: int
    state_slots: int

    def cut(self, memory: U8) -> tuple[Step, int]:
        """The arrays in this memory, and the bytes they take."""
        used = 0

        def take(count: int, value: type[np.generic]) -> np.ndarray:
            nonlocal used
            begin, num_bytes = used, count * np.dtype(value).itemsize
            used += -(-num_bytes // 16) * 16
            assert used <= memory.size, f"a step of {self} takes more than {memory.size} bytes"
            return memory[begin : begin + num_bytes].view(value)

        tables = take(self.sequences * self.blocks, np.int32).reshape(self.sequences, self.blocks)
        step = Step(
            token_ids=take(self.tokens, np.int32),
            positions=take(self.tokens, np.int32),
            seq_index=take(self.tokens, np.int32),
            slot_mapping=take(self.tokens, np.int64),
            block_tables=tables,
            logit_rows=take(self.logit_rows, np.int32),
            state_slots=take(self.state_slots, np.int32),
        )
        return step, used


def step_bytes(max_tokens: int, max_sequences: int, max_blocks: int) -> int:
    """The most that a step's arrays take."""
    sizes = max_tokens * (4 * 4 + 8) + max_sequences * 4 * (max_blocks + 1)
    return sizes + 7 * 16


def is_decode(step: Step) -> bool:
    """One token of each sequence, and the logits of all."""
    count = step.token_ids.size
    if not count == len(step.block_tables) == step.logit_rows.size:
        return False
    rows = np.arange(count)
    return bool((step.seq_index == rows).all() and (step.logit_rows == rows).all())


def bucket_of(step: Step) -> Key:
    """Sequences, and blocks of the longest context, rounded up to a power of two."""
    blocks = int(step.positions.max()) // BLOCK_TOKENS + 1
    return step.token_ids.size, max(SMALLEST_BLOCKS, 1 << (blocks - 1).bit_length())


class StepPlace:
    """The fixed place in VRAM, and the pinned memory of the host from which steps get there."""

    def __init__(self, device: GpuDevice, num_bytes: int) -> None:
        """num_bytes: of the largest step. Raises DeviceFull, DeviceLost."""
        self._device, self._driver = device, device.driver
        self._address = self._driver.allocate(num_bytes)
        self._slots = [(self._slot(num_bytes), self._driver.event()) for _ in range(SLOTS)]
        self._next = 0
        self.sketch = self._slot(num_bytes)  # of steps that are drawn, never copied

    def _slot(self, num_bytes: int) -> U8:
        memory = self._driver.pinned(num_bytes)
        self._device.alias(memory, self._address)
        return memory

    def send(self, step: Step, width: int) -> Step:
        """The same step where kernels find it, its tables so wide."""
        memory, event = self._slots[self._next]
        self._next = (self._next + 1) % SLOTS
        self._driver.wait(event)
        sizes = StepSizes(
            step.token_ids.size, len(step.block_tables), width,
            step.logit_rows.size, step.state_slots.size,
        )  # fmt: skip
        sent, num_bytes = sizes.cut(memory)
        for name in ("token_ids", "positions", "seq_index", "slot_mapping", "logit_rows"):
            getattr(sent, name)[...] = getattr(step, name)
        sent.state_slots[...] = step.state_slots
        filled = min(width, step.block_tables.shape[1])
        sent.block_tables[:, :filled] = step.block_tables[:, :filled]
        sent.block_tables[:, filled:] = 0
        self._driver.upload(self._address, memory[:num_bytes], self._device.compute)
        self._driver.record(event, self._device.compute)
        return sent


class StepRunner:
    """Runs steps of one model on one device.

    context_length  positions that a sequence can have
    """

    def __init__(
        self,
        device: GpuDevice,
        *,
        max_tokens: int,
        max_sequences: int,
        context_length: int,
    ) -> None:
        """Raises DeviceFull, DeviceLost."""
        self._device, self._context_length = device, context_length
        widest = 1 << (-(-context_length // BLOCK_TOKENS) - 1).bit_length()
        most = step_bytes(max_tokens, max_sequences, max(widest, SMALLEST_BLOCKS))
        self._place = StepPlace(device, most)
        self._graphs: OrderedDict[Key, tuple[Graph, F32]] = OrderedDict()
        self._seen: set[Key] = set()

    @property
    def num_graphs(self) -> int:
        return len(self._graphs)

    def run(self, step: Step, forward: Forward, after_layer: Callable[[], None]) -> F32:
        """The logits that forward gives, in VRAM; drawn, launched or made launch by launch.

        forward must give the same launches for the same sizes. Of a graph after_layer is called
        once. Raises what forward raises, DeviceFull, DeviceLost.
        """
        if not is_decode(step):
            return forward(self._place.send(step, step.block_tables.shape[1]), after_layer)
        key = bucket_of(step)
        sent = self._place.send(step, key[1])
        if key not in self._graphs:
            if key not in self._seen:
                self._seen.add(key)
                return forward(sent, after_layer)
            self._draw(key, forward, step.state_slots.size)
        self._graphs.move_to_end(key)
        graph, logits = self._graphs[key]
        self._device.launch_graph(graph)
        after_layer()
        return logits

    def _draw(self, key: Key, forward: Forward, num_slots: int) -> None:
        """The graph of a bucket."""
        count, blocks = key
        step, _ = StepSizes(count, count, blocks, count, num_slots).cut(self._place.sketch)
        rows: I32 = np.arange(count, dtype=np.int32)
        step.token_ids[...] = step.slot_mapping[...] = step.block_tables[...] = 0
        step.positions[...] = min(blocks * BLOCK_TOKENS, self._context_length) - 1
        step.seq_index[...] = step.logit_rows[...] = rows
        step.state_slots[...] = np.arange(num_slots)
        found: list[F32] = []
        graph = self._device.draw(lambda: found.append(forward(step, _go_on)))
        if len(self._graphs) == MAX_GRAPHS:
            self._device.wait()
            _, (oldest, _) = self._graphs.popitem(last=False)
            self._device.driver.destroy_graph(oldest)
        self._graphs[key] = graph, found[0]


def _go_on() -> None:
    """Nobody waits for a layer that is only drawn."""
