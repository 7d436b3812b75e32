"""What a sequence leaves, or has completed: its tokens, and the memory computed for them.

    token_ids   | prompt + output ................................ last |
                | block | block | ... | block | tail  |
                0                             256 * n num_kv             the last token was sampled,
                                                                         not computed

Of a sequence that goes on (behind.py) it is only full blocks, and a state at their end.

Whoever has a Kept holds that memory: nobody writes to it, and it is not given out. So its bytes may
be read from any thread until Engine.release.
"""

from dataclasses import dataclass

from workers.wire import Request


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """Made by the engine's thread; ended by Engine.release, exactly once.

    token_ids  all of prompt and output
    num_kv     of them have KV: [0, num_kv)
    blocks     (key, block id) of each full block, in order of position
    tail       (key, block id) of the rest of num_kv, None at a multiple of a block
    state      (key, slot) of the recurrent state after num_kv tokens; None: no such layers
    start      the key before the first token
    first      blocks before this index were handed out before, to be written
    num_reused of its tokens were there when it began
    """

    request: Request
    token_ids: list[int]
    num_prompt: int
    num_kv: int
    blocks: list[tuple[bytes, int]]
    tail: tuple[bytes, int] | None = None
    state: tuple[bytes, int] | None = None
    start: bytes = bytes(32)
    first: int = 0
    num_reused: int = 0

    @property
    def block_ids(self) -> list[int]:
        """All that it holds."""
        tail = [] if self.tail is None else [self.tail[1]]
        return [block_id for _, block_id in self.blocks] + tail
