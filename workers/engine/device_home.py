"""KV blocks and state slots in a device's memory.

    files ──view──► host ──write──► block, slot        when a sequence takes them, once
    block, slot ──read──► host ──► file                when the writer wants it, in its thread

Nothing is mapped: a device reads no file in place. A tail's file holds fewer tokens than a block,
so it is spread out in RAM first and goes over as a whole block.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from kernels.arrays import Array, Arrays
from kernels.ops import BLOCK_TOKENS, F16, KvArena, StateArena
from kv_tier.objects import Elsewhere
from workers.engine.home import Block
from workers.engine.payload import Parts, copy_tokens, state_of, tail_of
from workers.model.config import StateShape

if TYPE_CHECKING:
    from kv_tier.open_object import OpenObject


class DeviceHome:
    """A Home of workers.engine.home over kernels.arrays.Arrays."""

    num_mapped = 0

    def __init__(
        self, arrays: Arrays, kv_shape: Sequence[int], state: StateShape | None, num_slots: int
    ) -> None:
        """Raises DeviceFull."""
        self._arrays = arrays
        self.kv = KvArena(arrays.reserve(kv_shape, np.float16))
        self.state: StateArena | None = None
        if state is not None:
            shapes = state.conv(num_slots), state.delta(num_slots)
            self.state = StateArena(*(arrays.reserve(shape, np.float32) for shape in shapes))

    def is_mapped(self, block_id: int) -> bool:
        return False

    def make_own(self, block_id: int, num_tokens: int = 0) -> None:
        """It is."""

    def load_block(self, block_id: int, file: "OpenObject") -> None:
        self._write_block(block_id, tail_of(file.view(), self._shape, BLOCK_TOKENS))

    def load_tokens(self, block_id: int, part: Block, num_tokens: int) -> None:
        """More tokens than these may come over: they are written again before they are read."""
        if isinstance(part, int):
            self._arrays.copy(self.kv.blocks[block_id], self.kv.blocks[part])
            return
        spread: F16 = np.zeros(self._shape, np.float16)
        copy_tokens(spread, tail_of(part.view(), self._shape, part.num_tokens), num_tokens)
        self._write_block(block_id, spread)

    def load_state(self, slot: int, file: "OpenObject") -> None:
        targets = self._slot(slot)
        values = state_of(file.view(), *(target.shape for target in targets))
        for target, value in zip(targets, values, strict=True):
            self._arrays.write(target, value)

    def copy_state(self, source: int, target: int) -> None:
        for one, other in zip(self._slot(target), self._slot(source), strict=True):
            self._arrays.copy(one, other)

    def of_block(self, block_id: int) -> Parts:
        block = self.kv.blocks[block_id]
        return (self._later(block),)

    def of_tail(self, block_id: int, num_tokens: int) -> Parts:
        """The whole block comes; a step of PCIe is cheap beside a call for each head."""
        block = self.kv.blocks[block_id]
        read = self._arrays.read

        def fetch() -> Any:
            return np.ascontiguousarray(read(block)[..., :num_tokens, :])

        return (Elsewhere(block.nbytes // BLOCK_TOKENS * num_tokens, fetch),)

    def of_state(self, slot: int) -> Parts:
        return tuple(map(self._later, self._slot(slot)))

    def rest(self, blocks: Iterable[int], slots: Iterable[int]) -> None:
        """The device's memory was reserved at start, and stays so."""

    @property
    def _shape(self) -> tuple[int, ...]:
        return self.kv.blocks.shape[1:]

    def _write_block(self, block_id: int, values: F16) -> None:
        self._arrays.write(self.kv.blocks[block_id], values)

    def _slot(self, slot: int) -> tuple[Array, Array]:
        assert self.state is not None
        return self.state.conv[slot], self.state.delta[slot]

    def _later(self, array: Array) -> Elsewhere:
        fetch: Callable[[], Any] = partial(self._arrays.read, array)
        return Elsewhere(array.nbytes, fetch)
