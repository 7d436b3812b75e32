"""The stand-in on one processor: weights, KV, state, and the steps it is asked for.

The same on the GPU and in the CPU's process (cpu_side.py): ops and arrays differ, nothing else.
"""

from dataclasses import dataclass

import numpy as np

from ingest.command.bench.gpu.steps import Layout
from kernels.arrays import Arrays
from kernels.ops import F32, KvArena, Ops, StateArena, Step
from workers.model.build import Model
from workers.model.config import ModelConfig

Choice = tuple[int, int]  # token id, sum of the bits of its logits


def state_shapes_of(config: ModelConfig, slots: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Of StateArena.conv and .delta."""
    assert config.state is not None, "the stand-in has linear layers"
    return tuple(config.state.conv(slots)), tuple(config.state.delta(slots))


@dataclass(frozen=True, slots=True)
class Seat:
    """A model that can be stepped."""

    model: Model
    ops: Ops
    arrays: Arrays
    kv: KvArena
    state: StateArena

    @property
    def config(self) -> ModelConfig:
        return self.model.config

    def forward(self, step: Step) -> F32:
        return self.model.forward(step, self.kv, self.state, _go_on)

    def choose(self, step: Step) -> list[Choice]:
        """A whole step: of each wanted row its largest logit and the sum of its digest."""
        logits = self.forward(step)
        best, sums = np.empty(len(logits), np.int32), np.empty(len(logits), np.uint64)
        if len(logits):
            self.ops.logits_argmax(best, logits)
            self.ops.logits_sum(sums, logits)
        return list(zip(best.tolist(), sums.tolist(), strict=True))

    def prefill(self, layout: Layout, token_ids: list[int], chunk: int) -> Choice:
        """All of a prompt, in chunks; its last token's choice."""
        found: list[Choice] = []
        for begin in range(0, len(token_ids), chunk):
            end = min(begin + chunk, len(token_ids))
            is_last = end == len(token_ids)
            found = self.choose(layout.prefill(token_ids[begin:end], begin, is_last=is_last))
        return found[0]

    def carry_on(self, layout: Layout, token_id: int, position: int, count: int) -> list[Choice]:
        """So many greedy tokens of one sequence behind token_id, which stands at position."""
        found: list[Choice] = []
        for index in range(count):
            found += self.choose(layout.decode([token_id], position + index))
            token_id = found[-1][0]
        return found

    def decode(self, layout: Layout, sessions: int, position: int, steps: int) -> None:
        """Steps of one token of each session; their tokens do not matter."""
        tokens = [1 + i for i in range(sessions)]
        for index in range(steps):
            tokens = [
                max(0, best) for best, _ in self.choose(layout.decode(tokens, position + index))
            ]


def _go_on() -> None:
    """Nobody waits for a layer here."""
