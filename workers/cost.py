"""What work costs on one pool with one model: milliseconds as plain sums of what is computed.

A step of d decodes that read c positions in all, and of p prefilled tokens that have b positions
before them on average, is taken to cost

    fixed_ms + decode_ms * d + context_us * c / 10^6                       the weights, the decodes
             + prefill_ms * p + prefill_context_us * p * b / 10^6          the prompts

The pool learns the numbers (workers/engine/cost.py) and reports them; the router predicts with
them, and the simulator plays the pool by them. All functions here are pure. Nothing here touches a
result: a model that is wrong costs time, never an answer.
"""

from math import ceil
from typing import Final

import msgspec

MARGIN_LEAST: Final = 0.1  # of a promised pace, for what comes between steps
MARGIN_MAX: Final = 0.25  # and for steps that take longer than predicted


class CostModel(msgspec.Struct, frozen=True, kw_only=True):
    """None of the numbers is negative.

    fixed_ms            ms of every step: reading the weights
    decode_ms           ms more for each decoded sequence
    prefill_ms          ms more for each prefilled token
    context_us          us for 1000 KV positions that a decode reads
    prefill_context_us  us for each prefilled token with 1000 positions before it
    kv_bytes_per_token  of all layers
    state_bytes         recurrent state of one sequence; 0: the model has none
    write_bytes_per_s   to files, where another pool finds it; 0: not known
    read_bytes_per_s    from files into the pool's memory; 0: not known
    error               mean relative error of predicted steps, lately; 0.1 is 10 %
    samples             steps from which it was learned; 0: only the calibration at start
    """

    fixed_ms: float
    decode_ms: float = 0.0
    prefill_ms: float = 0.0
    context_us: float = 0.0
    prefill_context_us: float = 0.0
    kv_bytes_per_token: int = 0
    state_bytes: int = 0
    write_bytes_per_s: float = 0.0
    read_bytes_per_s: float = 0.0
    error: float = 0.0
    samples: int = 0

    def step_ms(
        self,
        decodes: float,
        context_tokens: float = 0,
        prefill_tokens: float = 0,
        prefill_context: float = 0,
    ) -> float:
        """One step.

        decodes          sequences that get one token
        context_tokens   positions that they read, all of them together
        prefill_tokens   prompt tokens beside them
        prefill_context  positions before each of those, on average
        """
        decode = self.decode_ms * decodes + self.context_us * context_tokens / 1e6
        return self.fixed_ms + decode + prefill_tokens * self.token_ms(prefill_context)

    def token_ms(self, context: float) -> float:
        """One prefilled token with so many positions before it, without the step's fixed part."""
        return self.prefill_ms + self.prefill_context_us * context / 1e6

    def prefill_ms_of(
        self,
        tokens: float,
        context: float = 0,
        chunk: int = 512,
        decodes: float = 0,
        decode_context: float = 0,
    ) -> float:
        """A whole prompt of so many tokens behind `context` positions, in steps of `chunk` tokens.

        decodes, decode_context  what runs in the same steps, and the positions it reads in all
        """
        if tokens <= 0:
            return 0.0
        steps = ceil(tokens / max(1, chunk))
        beside = self.step_ms(decodes, decode_context)
        return steps * beside + tokens * self.token_ms(context + tokens / 2)

    def safe_ms(self, promise_ms: float) -> float:
        """A promise per token, less what steps differ from the model."""
        return promise_ms * (1 - max(MARGIN_LEAST, min(self.error, MARGIN_MAX)))

    def prefill_room_ms(self, base_ms: float, safe_ms: float, budget_ms: float) -> float:
        """What prefill may take of a step, beside decodes that take base_ms.

        safe_ms    the tightest pace that these are to have; no limit where they alone take longer:
                   rather a pace that is broken than somebody's prompt for ever
        budget_ms  of a step; decodes that take most of it leave half of their own time
        """
        room_ms = max(budget_ms - base_ms, base_ms / 2)
        return min(room_ms, safe_ms - base_ms) if base_ms < safe_ms else room_ms

    def tokens_within(self, room_ms: float, context: float, longest: int) -> int:
        """How many of `longest` prompt tokens behind `context` positions take no more than that."""
        token_ms = self.token_ms(context)
        if token_ms <= 0 or room_ms >= token_ms * longest:
            return longest  # what costs nothing, as far as it is known, is not held back
        return min(longest, max(0, int(room_ms / token_ms)))

    def bytes_of(self, tokens: float) -> float:
        """KV and state of a sequence of so many tokens."""
        return self.kv_bytes_per_token * tokens + self.state_bytes

    def restore_ms(self, tokens: float) -> float:
        """What files hold of so many tokens comes into this pool's memory."""
        return milliseconds(self.bytes_of(tokens), self.read_bytes_per_s)

    def write_ms(self, tokens: float) -> float:
        """What this pool holds of so many tokens goes into files."""
        return milliseconds(self.bytes_of(tokens), self.write_bytes_per_s)

    def move_ms(self, tokens: float, to: "CostModel | None" = None) -> float:
        """A sequence of so many tokens leaves this pool and is ready in another one (`to`)."""
        return self.write_ms(tokens) + (to or self).restore_ms(tokens)


def milliseconds(num_bytes: float, bytes_per_s: float) -> float:
    """0 where the speed is not known: then it is not what decides."""
    return 1000 * num_bytes / bytes_per_s if bytes_per_s > 0 else 0.0
