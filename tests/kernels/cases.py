"""Random weights, activations and KV for the tests of the ops, and how two results compare."""

import numpy as np

from kernels.layout import FORMATS, pack_matrix
from kernels.ops import (
    BLOCK_TOKENS,
    F32,
    KvArena,
    Matrix,
    Ops,
    QuantizedRows,
    Step,
    kv_shape,
    quantized_rows,
)

QUANTISED = ("q4_0", "q4_1", "q8_0")


def random_matrix(kind: str, rows: int, cols: int, seed: int = 0) -> Matrix:
    """A packed matrix with all quants possible and scales of both signs, some tiny."""
    rng = np.random.default_rng(seed)
    if kind == "f32":
        values = rng.standard_normal((rows, cols)).astype(np.float32)
        return Matrix(kind, rows, cols, pack_matrix(kind, values, rows, cols))
    form = FORMATS[kind]
    raw = rng.integers(0, 256, (rows, cols // 32, form.block_bytes), dtype=np.uint8)
    halves = rng.standard_normal((rows, cols // 32, form.halves)) * 0.05
    halves[rng.random(halves.shape) < 0.02] = 3e-8  # a subnormal float16
    raw[..., : 2 * form.halves] = halves.astype(np.float16).view(np.uint8)
    return Matrix(kind, rows, cols, pack_matrix(kind, raw.reshape(rows, -1), rows, cols))


def random_rows(num_rows: int, cols: int, seed: int = 0) -> F32:
    """Activations with a few values much larger than the rest, as real ones have."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((num_rows, cols)).astype(np.float32)
    x[rng.random(x.shape) < 0.01] *= 50
    return x


def quantized(ops: Ops, x: F32) -> QuantizedRows:
    out = quantized_rows(*x.shape)
    ops.quantize_rows(out, x)
    return out


def product(ops: Ops, x: F32, w: Matrix) -> F32:
    """x @ w.T as the model does it: quantised activations, or float for an f32 matrix."""
    out = np.full((x.shape[0], w.rows), np.nan, np.float32)
    if w.kind == "f32":
        ops.matmul_f32(out, x, w)
    else:
        ops.matmul(out, quantized(ops, x), w)
    return out


class Conversation:
    """Some sequences with all their keys and values stored, blocks in no particular order.

    lengths   tokens of each sequence
    kv        the arena, garbage (NaN) wherever nothing is stored
    """

    def __init__(self, lengths: list[int], heads: int, kv_heads: int, head_dim: int) -> None:
        rng = np.random.default_rng(sum(lengths) + heads)
        blocks = [-(-n // BLOCK_TOKENS) for n in lengths]
        order = rng.permutation(sum(blocks) + 1).astype(np.int32)
        self.block_tables = np.zeros((len(lengths), max(blocks)), np.int32)
        for i, count in enumerate(blocks):
            begin = sum(blocks[:i])
            self.block_tables[i, :count] = order[begin : begin + count]
        self.tokens = [(s, p) for s, n in enumerate(lengths) for p in range(n)]
        shape = (len(self.tokens), kv_heads, head_dim)
        self.k = rng.standard_normal(shape).astype(np.float32)
        self.v = rng.standard_normal(shape).astype(np.float32)
        self.q = rng.standard_normal((shape[0], heads, head_dim)).astype(np.float32)
        self.shape = kv_shape(order.size, 2, kv_heads, head_dim)
        self.scale = head_dim**-0.5

    def step(self, rows: np.ndarray) -> Step:
        """The step that holds these tokens (indices into self.tokens, ascending)."""
        seq = np.array([self.tokens[r][0] for r in rows], np.int32)
        positions = np.array([self.tokens[r][1] for r in rows], np.int32)
        block = self.block_tables[seq, positions // BLOCK_TOKENS].astype(np.int64)
        slots = block * BLOCK_TOKENS + positions % BLOCK_TOKENS
        nothing = np.zeros(0, np.int32)
        return Step(positions, positions, seq, slots, self.block_tables, nothing)

    def stored(self, ops: Ops) -> KvArena:
        kv = KvArena(np.full(self.shape, np.nan, np.float16))
        rows = np.arange(len(self.tokens))
        ops.store_kv(kv, 1, self.k, self.v, self.step(rows).slot_mapping)
        return kv

    def attend(self, ops: Ops, kv: KvArena, rows: np.ndarray, window: int = 0) -> F32:
        """What these tokens see."""
        out = np.full((len(rows), *self.q.shape[1:]), np.nan, np.float32)
        q = np.ascontiguousarray(self.q[rows])
        ops.attention(out, q, kv, 1, self.step(rows), self.scale, window)
        return out


def same_bits(expected: np.ndarray, actual: np.ndarray) -> None:
    """Equal bit for bit, but that any NaN equals any other."""
    assert expected.shape == actual.shape and expected.dtype == actual.dtype
    unsigned = {2: np.uint16, 4: np.uint32, 8: np.uint64, 1: np.uint8}[expected.dtype.itemsize]
    differs = expected.view(unsigned) != actual.view(unsigned)
    if expected.dtype.kind == "f":
        differs &= ~(np.isnan(expected) & np.isnan(actual))
    if differs.any():
        at = tuple(int(i) for i in np.argwhere(differs)[0])
        raise AssertionError(
            f"{differs.sum()} of {differs.size} differ, "
            f"first at {at}: {expected[at]!r}, {actual[at]!r}"
        )


def close(expected: np.ndarray, actual: np.ndarray, tolerance: tuple[float, float]) -> None:
    """Within (relative, absolute); names the first wrong element."""
    relative, absolute = tolerance
    wrong = ~(np.abs(actual - expected) <= absolute + relative * np.abs(expected))
    if wrong.any():
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise AssertionError(
            f"{wrong.sum()} of {wrong.size} wrong, first at {at}: {expected[at]!r}, {actual[at]!r}"
        )
