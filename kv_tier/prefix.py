"""What is known of a prompt's beginning: its keys, and the files that hold it, checked and in RAM.

    tokens   [0, 256)   [256, 512)   [512, 700)     700
    file      block       block         tail        state       of a hybrid model: the state there
    key      keys[0]     keys[1]    key_at(700)   key_at(700)

KvTier.fetch makes a Prefix in a helper's thread; the engine uses it up in its own: it maps or
copies what it wants, then closes all. A block below the end that is missing from `blocks` was said
to be in the engine's RAM (`resident`); if it has gone since, the hit ends there. What is in
`blocks` was read in full and agrees with its checksums.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from kv_tier.open_object import OpenObject

Resident = Callable[[bytes], bool]  # is it in the engine's RAM? From any thread, and only a hint
STATE_SUFFIX: Final = b"state"


@dataclass(frozen=True, slots=True)
class Sizes:
    """What one engine's objects weigh; a file of any other size is not its own.

    fingerprint  of weights, arithmetic and shapes, 32 bytes
    block_bytes  payload of a full block, all layers
    token_bytes  payload of a tail, per token
    state_bytes  payload of a recurrent state; 0: the model has none
    """

    fingerprint: bytes
    block_bytes: int
    token_bytes: int
    state_bytes: int

    def payload_bytes(self, kind: str, num_tokens: int) -> int:
        """Of an object of this kind over so many tokens."""
        if kind == "tail":
            return self.token_bytes * num_tokens
        return self.block_bytes if kind == "block" else self.state_bytes


def state_name(key: bytes) -> bytes:
    """What `resident` is asked for a state: at a block's end the block's key is the same."""
    return key + STATE_SUFFIX


@dataclass(slots=True)
class Prefix:
    """The longest usable beginning of a prompt.

    keys       of all full blocks of the tokens that were asked for, found or not
    ends       positions at which a tail or a state may lie, also in the engine's RAM; ascending
    blocks     key -> file, of the full blocks below the end that are not in RAM
    tail       the file over [tail_end // 256 * 256, tail_end), None: none is wanted
    state      the file of the state at state_end; None: the model has none, or it is in RAM
    end        tokens [0, end) need not be computed, if RAM still has what it had
    """

    keys: list[bytes] = field(default_factory=list)
    ends: tuple[int, ...] = ()
    blocks: dict[bytes, OpenObject] = field(default_factory=dict)
    tail: OpenObject | None = None
    tail_end: int = 0
    state: OpenObject | None = None
    state_end: int = 0
    end: int = 0

    @property
    def opened(self) -> Sequence[OpenObject]:
        """Every file it holds open."""
        single = (one for one in (self.tail, self.state) if one is not None)
        return [*self.blocks.values(), *single]

    def close(self) -> None:
        """Close every file; what was mapped from them stays readable. Once more does nothing."""
        for opened in self.opened:
            opened.close()
        self.blocks, self.tail, self.state = {}, None, None
