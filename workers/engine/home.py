"""Where the bytes of KV blocks and state slots lie; how files become them, and they files.

    memory.py, state_pool.py    which block, which slot, and whose: numbers alone
    Home                        their bytes
      HostHome                  this process's memory: the ops work on it, files are mapped in place
      device_home.py            a device's: files are copied over once, when a sequence takes them

A file is mapped read-only, so a block that is to be written to is made our own first.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol, Union

import numpy as np

from kernels.ops import BLOCK_TOKENS, F16, KvArena, StateArena
from kv_tier.arena import Arena, MapRefused
from workers.engine.payload import (
    Parts,
    copy_tokens,
    state_of,
    tail_of,
    tail_parts,
)
from workers.model.config import StateShape

if TYPE_CHECKING:
    from kv_tier.open_object import OpenObject

Block = Union[int, "OpenObject"]  # in the arena, or in a file


class Home(Protocol):
    """The bytes of one engine's blocks and slots.

    kv, state  as the ops take them; state is None where the model has none
    of_block, of_tail, of_state  parts of a file's payload, from any thread, while nobody writes to
                                 that block or slot; all else belongs to the engine's thread
    """

    kv: KvArena
    state: StateArena | None

    @property
    def num_mapped(self) -> int:
        """Blocks that are a file's pages."""

    def is_mapped(self, block_id: int) -> bool: ...

    def make_own(self, block_id: int, num_tokens: int = 0) -> None:
        """The block may be written to; it keeps its first num_tokens."""

    def load_block(self, block_id: int, file: "OpenObject") -> None:
        """The block is the file's."""

    def load_tokens(self, block_id: int, part: Block, num_tokens: int) -> None:
        """The first num_tokens of a block or file become those of our own block block_id."""

    def load_state(self, slot: int, file: "OpenObject") -> None: ...

    def copy_state(self, source: int, target: int) -> None: ...

    def of_block(self, block_id: int) -> Parts: ...

    def of_tail(self, block_id: int, num_tokens: int) -> Parts: ...

    def of_state(self, slot: int) -> Parts: ...

    def rest(self, blocks: Iterable[int], slots: Iterable[int]) -> None:
        """What lies in these is not wanted: the system may have their memory."""


class HostHome:
    """Home in this process's memory."""

    def __init__(self, kv_shape: Sequence[int], state: StateShape | None, num_slots: int) -> None:
        """Raises ArenaRefused when the system gives no addresses."""
        self._arena = Arena(kv_shape, np.float16)
        self.kv = KvArena(self._arena.blocks)
        self.state: StateArena | None = None
        self._of_state: tuple[Arena[np.float32], ...] = ()
        if state is not None:
            conv = Arena(state.conv(num_slots), np.float32)
            delta = Arena(state.delta(num_slots), np.float32)
            self.state, self._of_state = StateArena(conv.blocks, delta.blocks), (conv, delta)

    @property
    def num_mapped(self) -> int:
        return self._arena.num_mapped

    def is_mapped(self, block_id: int) -> bool:
        return self._arena.is_mapped(block_id)

    def make_own(self, block_id: int, num_tokens: int = 0) -> None:
        if self._arena.is_mapped(block_id):
            kept = self._block(block_id)[..., :num_tokens, :].copy()
            self._arena.unmap(block_id)
            copy_tokens(self._block(block_id), kept, num_tokens)

    def load_block(self, block_id: int, file: "OpenObject") -> None:
        """Mapped, or copied where it cannot be mapped."""
        try:
            if self._arena.can_map:
                self._arena.map_file(block_id, file.fd, file.payload_offset, address=file.address)
                return
        except MapRefused:
            pass  # too many mappings, or a file system without them
        self.load_tokens(block_id, file, BLOCK_TOKENS)

    def load_tokens(self, block_id: int, part: Block, num_tokens: int) -> None:
        target = self._block(block_id)
        if isinstance(part, int):
            source = self._block(part)
        else:
            source = tail_of(part.view(), target.shape, part.num_tokens)
        copy_tokens(target, source, num_tokens)

    def load_state(self, slot: int, file: "OpenObject") -> None:
        assert self.state is not None
        conv, delta = self.state.conv[slot], self.state.delta[slot]
        conv[...], delta[...] = state_of(file.view(), conv.shape, delta.shape)

    def copy_state(self, source: int, target: int) -> None:
        for arena in self._of_state:
            arena.blocks[target] = arena.blocks[source]

    def of_block(self, block_id: int) -> Parts:
        return (self._block(block_id),)

    def of_tail(self, block_id: int, num_tokens: int) -> Parts:
        return tail_parts(self._block(block_id), num_tokens)

    def of_state(self, slot: int) -> Parts:
        assert self.state is not None
        return self.state.conv[slot], self.state.delta[slot]

    def rest(self, blocks: Iterable[int], slots: Iterable[int]) -> None:
        self._arena.discard(blocks)
        free = list(slots)
        for arena in self._of_state:
            arena.discard(free)

    def _block(self, block_id: int) -> F16:
        block: F16 = self._arena.blocks[block_id]
        return block
