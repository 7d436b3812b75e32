"""The judge: every op in NumPy, sums in float64, slow and plain.

It says whether an op is right (within the tolerances of tests/kernels); in which order the fast
sides add, and so which bits they give, is ARITHMETIC.md's matter. Activations are quantised here
exactly as there, so that the products differ by rounding of sums alone.
"""

from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from kernels.fused import FusedFromParts
from kernels.layout import dequantize_blocks, unpack_matrix
from kernels.ops import (
    BLOCK_TOKENS,
    F32,
    I32,
    I64,
    QUANT_BLOCK,
    U64,
    KvArena,
    Matrix,
    QuantizedRows,
    RopeTable,
    StateArena,
    Step,
)

F64 = npt.NDArray[np.float64]
F16_MAX: Final = 65504.0
TINY_BLOCK: Final = np.float32(
    2.0**-100
)  # a block whose largest value is below this counts as zero


def runs_of(step: Step) -> list[tuple[slice, int, bool]]:
    """(tokens, state slot, whether it starts from nothing) of each sequence of the step."""
    bounds = np.flatnonzero(np.diff(step.seq_index, prepend=-1, append=-1))
    return [
        (
            slice(int(begin), int(end)),
            int(step.state_slots[step.seq_index[begin]]),
            int(step.positions[begin]) == 0,
        )
        for begin, end in pairwise(bounds)
    ]


def weights_of(w: Matrix) -> F64:
    """(rows, cols) float64, exact."""
    return dequantize_blocks(w.kind, unpack_matrix(w.kind, w.data, w.rows, w.cols))


class ReferenceOps(FusedFromParts):
    """kernels.ops.Ops in float64."""

    name = "reference"

    def embed(self, out: F32, table: Matrix, token_ids: I32) -> None:
        assert out.shape == (token_ids.size, table.cols), (out.shape, token_ids.size, table.cols)
        out[...] = weights_of(table)[token_ids]

    def take_rows(self, out: F32, x: F32, rows: I32) -> None:
        assert out.shape == (rows.size, x.shape[1]), (out.shape, rows.size, x.shape)
        out[...] = x[rows]

    def quantize_rows(self, out: QuantizedRows, x: F32) -> None:
        blocks = x.reshape(x.shape[0], -1, QUANT_BLOCK)
        largest = np.abs(blocks).max(axis=-1)
        finite = np.isfinite(blocks).all(axis=-1)
        used = finite & (largest >= TINY_BLOCK)
        factor = np.divide(np.float32(127), largest, where=used, out=np.zeros_like(largest))
        clean = np.where(used[..., None], blocks, np.float32(0))
        values = np.rint(clean * factor[..., None])
        out.values[...] = values.reshape(x.shape)
        out.sums[...] = values.sum(axis=-1)
        scale = np.where(used, largest / np.float32(127), np.float32(0))
        out.scales[...] = np.where(finite, scale, np.float32(np.nan))

    def matmul(self, out: F32, x: QuantizedRows, w: Matrix) -> None:
        blocks = x.values.reshape(*x.scales.shape, QUANT_BLOCK) * x.scales[..., None].astype(float)
        out[...] = blocks.reshape(x.values.shape) @ weights_of(w).T

    def matmul_f32(self, out: F32, x: F32, w: Matrix) -> None:
        assert w.kind == "f32", w.kind
        out[...] = x.astype(np.float64) @ weights_of(w).T

    def add(self, out: F32, x: F32) -> None:
        out += x

    def rms_norm(self, out: F32, x: F32, weight: F32, eps: float) -> None:
        mean_square = np.mean(np.square(x, dtype=np.float64), axis=-1, keepdims=True)
        out[...] = x / np.sqrt(mean_square + eps) * weight

    def rope(self, x: F32, positions: I32, table: RopeTable) -> None:
        half = table.cos.shape[1]
        cos = table.cos[positions].astype(np.float64)[:, None, :]
        sin = table.sin[positions].astype(np.float64)[:, None, :]
        step = 2 if table.adjacent else 1
        second = 1 if table.adjacent else half
        width = step * half
        a, b = x[..., 0:width:step], x[..., second : second + width : step]
        old_a, old_b = a.astype(np.float64), b.astype(np.float64)
        a[...] = old_a * cos - old_b * sin
        b[...] = old_a * sin + old_b * cos

    def store_kv(self, kv: KvArena, layer: int, k: F32, v: F32, slot_mapping: I64) -> None:
        block, offset = slot_mapping // BLOCK_TOKENS, slot_mapping % BLOCK_TOKENS
        kv.blocks[block, layer, 0, :, offset] = np.clip(k, -F16_MAX, F16_MAX)
        kv.blocks[block, layer, 1, :, offset] = np.clip(v, -F16_MAX, F16_MAX)

    def l2_norm(self, out: F32, x: F32, eps: float, scale: float) -> None:
        square = np.sum(np.square(x, dtype=np.float64), axis=-1, keepdims=True)
        out[...] = x / np.sqrt(square + eps) * scale

    def attention(
        self, out: F32, q: F32, kv: KvArena, layer: int, step: Step, scale: float, window: int = 0
    ) -> None:
        group = q.shape[1] // kv.blocks.shape[3]
        for t in range(q.shape[0]):
            num_keys = int(step.positions[t]) + 1
            first = max(num_keys - window, 0) if window else 0
            used = -(-num_keys // BLOCK_TOKENS)
            blocks = kv.blocks[step.block_tables[step.seq_index[t], :used], layer].astype(float)
            for head in range(q.shape[1]):
                keys, values = blocks[:, 0, head // group], blocks[:, 1, head // group]
                keys = keys.reshape(-1, q.shape[2])[first:num_keys]
                values = values.reshape(-1, q.shape[2])[first:num_keys]
                scores = keys @ q[t, head].astype(np.float64) * scale
                weights = np.exp(scores - scores.max())
                out[t, head] = weights @ values / weights.sum()

    def silu_mul(self, out: F32, gate: F32, up: F32) -> None:
        g = gate.astype(np.float64)
        out[...] = g / (1 + np.exp(-g)) * up

    def gelu_mul(self, out: F32, gate: F32, up: F32) -> None:
        g = gate.astype(np.float64)
        z = np.sqrt(2 / np.pi) * (g + 0.044715 * g**3)
        with np.errstate(over="ignore"):  # 1 + tanh z = 2 / (1 + exp(-2z))
            out[...] = g / (1 + np.exp(-2 * z)) * up

    def sigmoid_mul(self, out: F32, gate: F32, up: F32) -> None:
        out[...] = up / (1 + np.exp(-gate.astype(np.float64)))

    def scale(self, out: F32, factor: float) -> None:
        out *= np.float32(factor)

    def conv1d(
        self, out: F32, x: F32, state: StateArena, layer: int, weight: F32, step: Step
    ) -> None:
        taps = weight.shape[1]
        for tokens, slot, starts in runs_of(step):
            kept = state.conv[slot, layer]
            past = np.zeros_like(kept) if starts else kept
            inputs = np.concatenate([past, x[tokens]]).astype(np.float64)
            n = inputs.shape[0] - taps + 1
            y = sum(inputs[j : j + n] * weight[:, j] for j in range(taps))
            out[tokens] = y / (1 + np.exp(-y))
            kept[...] = inputs[n:]

    def delta_gates(self, decay: F32, beta: F32, a: F32, b: F32, ssm_a: F32, dt_bias: F32) -> None:
        decay[...] = np.exp(ssm_a * np.logaddexp(0, a.astype(np.float64) + dt_bias))
        beta[...] = 1 / (1 + np.exp(-b.astype(np.float64)))

    def gated_delta_rule(
        self, out: F32, q: F32, k: F32, v: F32, decay: F32, beta: F32,
        state: StateArena, layer: int, step: Step,
    ) -> None:  # fmt: skip
        heads, num_k_heads = v.shape[1], k.shape[1]
        for tokens, slot, starts in runs_of(step):
            kept = state.delta[slot, layer]
            for j in range(heads):
                s = np.zeros(kept.shape[1:]) if starts else kept[j].astype(np.float64)
                for t in range(tokens.start, tokens.stop):
                    key, query = k[t, j % num_k_heads], q[t, j % num_k_heads]
                    s *= decay[t, j]
                    e = beta[t, j] * (v[t, j] - s @ key)
                    s += np.outer(e, key)
                    out[t, j] = s @ query
                kept[j] = s

    def exp(self, out: F32, x: F32) -> None:
        out[...] = np.exp(x.astype(np.float64))

    def log(self, out: F32, x: F32) -> None:
        out[...] = np.log(x.astype(np.float64))

    def logits_sum(self, out: U64, logits: F32) -> None:
        odd = 2 * np.arange(logits.shape[1], dtype=np.uint64) + np.uint64(1)
        out[...] = (logits.view(np.uint32).astype(np.uint64) * odd).sum(axis=1, dtype=np.uint64)

    def logits_argmax(self, out: I32, logits: F32) -> None:
        finite = np.isfinite(logits).all(axis=1)
        out[...] = np.where(finite, np.argmax(logits, axis=1), -1)
