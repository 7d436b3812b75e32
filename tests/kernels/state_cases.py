"""Sequences for the ops with state: their inputs, and steps cut from them in any way."""

import numpy as np

from kernels.ops import F32, Ops, StateArena, Step, conv_shape, delta_shape

TAPS, LAYERS, LAYER = 4, 3, 1  # layers of the arena, and the one that is used
Part = tuple[int, int, int]  # sequence, and its tokens [begin, end)


class Recurrence:
    """Some sequences with all that a linear layer's ops take; slots in no particular order.

    x, weight             of conv1d, (sum of lengths, channels) and (channels, TAPS)
    q, k, v, decay, beta  of gated_delta_rule; q and k of length 1, as l2_norm leaves them
    """

    def __init__(
        self, lengths: list[int], heads: int, k_heads: int, value_dim: int, key_dim: int
    ) -> None:
        rng = np.random.default_rng(sum(lengths) + heads)
        count = sum(lengths)
        self.lengths, self.starts = lengths, np.cumsum([0, *lengths])
        self.sizes = heads, value_dim, key_dim
        self.slots = rng.permutation(len(lengths) + 2)[: len(lengths)].astype(np.int32)
        self.x = normal(rng, count, 72)
        self.weight = normal(rng, 72, TAPS)
        self.q, self.k = (unit(normal(rng, count, k_heads, key_dim)) for _ in range(2))
        self.v = normal(rng, count, heads, value_dim)
        self.decay = np.exp(-rng.gamma(0.3, 1, (count, heads))).astype(np.float32)
        self.beta = rng.random((count, heads), np.float32)

    def arena(self) -> StateArena:
        """Nothing that was not written may be read: all NaN."""
        slots, (heads, value_dim, key_dim) = len(self.lengths) + 2, self.sizes
        return StateArena(
            np.full(conv_shape(slots, LAYERS, TAPS, self.x.shape[1]), np.nan, np.float32),
            np.full(delta_shape(slots, LAYERS, heads, value_dim, key_dim), np.nan, np.float32),
        )

    def rows(self, parts: list[Part]) -> np.ndarray:
        """Which rows of the arrays these tokens are."""
        starts = self.starts
        return np.concatenate([np.arange(starts[s] + a, starts[s] + b) for s, a, b in parts])

    def step(self, parts: list[Part]) -> Step:
        positions = np.concatenate([np.arange(a, b) for _, a, b in parts]).astype(np.int32)
        index = np.repeat(np.arange(len(parts)), [b - a for _, a, b in parts]).astype(np.int32)
        slots = self.slots[[s for s, _, _ in parts]]
        none, tables = np.zeros(0, np.int32), np.zeros((len(parts), 1), np.int32)
        return Step(positions, positions, index, positions.astype(np.int64), tables, none, slots)

    def convolve(self, ops: Ops, arena: StateArena, parts: list[Part]) -> F32:
        x = self.x[self.rows(parts)]
        out = np.full_like(x, np.nan)
        ops.conv1d(out, x, arena, LAYER, self.weight, self.step(parts))
        return out

    def recur(self, ops: Ops, arena: StateArena, parts: list[Part]) -> F32:
        rows = self.rows(parts)
        inputs = (a[rows] for a in (self.q, self.k, self.v, self.decay, self.beta))
        out = np.full_like(self.v[rows], np.nan)
        ops.gated_delta_rule(out, *inputs, arena, LAYER, self.step(parts))
        return out

    def everything(self) -> list[Part]:
        """All tokens in one step."""
        return [(s, 0, n) for s, n in enumerate(self.lengths)]


def normal(rng: np.random.Generator, *shape: int) -> F32:
    return rng.standard_normal(shape).astype(np.float32)


def unit(x: F32) -> F32:
    return x / np.linalg.norm(x, axis=-1, keepdims=True).astype(np.float32)
