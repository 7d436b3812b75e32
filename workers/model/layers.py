"""The pieces that all graphs share: a projection, and the arrays that a step works in.

Arrays are allocated once, for the largest step; a step works in views of their first rows. Nothing
here computes a float: all arithmetic is a call of ops.
"""

from dataclasses import dataclass

import numpy as np

from kernels.ops import (
    F32,
    QUANT_BLOCK,
    Matrix,
    Ops,
    QuantizedRows,
    first_rows,
    quantized_rows,
)
from workers.model.pack import Weights


@dataclass(frozen=True, slots=True)
class Rows:
    """The input of a projection: one row of activations per token, and room for its quantised form.

    values     (T, K) float32
    quantized  None where K is no multiple of 32: such matrices stay float32
    """

    values: F32
    quantized: QuantizedRows | None

    @classmethod
    def allocate(cls, num_rows: int, cols: int) -> "Rows":
        quantized = None if cols % QUANT_BLOCK else quantized_rows(num_rows, cols)
        return cls(np.zeros((num_rows, cols), np.float32), quantized)

    def first(self, num_rows: int) -> "Rows":
        quantized = self.quantized and first_rows(self.quantized, num_rows)
        return Rows(self.values[:num_rows], quantized)

    def quantize(self, ops: Ops) -> None:
        """Make the quantised form, once for all projections that read these rows."""
        if self.quantized is not None:
            ops.quantize_rows(self.quantized, self.values)


@dataclass(frozen=True, slots=True)
class Heads:
    """One row per token, seen whole and by head.

    flat   (T, heads * D) float32
    split  (T, heads, D), the same bytes
    """

    flat: F32
    split: F32

    @classmethod
    def allocate(cls, num_rows: int, num_heads: int, head_dim: int) -> "Heads":
        split = np.zeros((num_rows, num_heads, head_dim), np.float32)
        return cls(split.reshape(num_rows, -1), split)

    def first(self, num_rows: int) -> "Heads":
        return Heads(self.flat[:num_rows], self.split[:num_rows])


@dataclass(frozen=True, slots=True)
class Projection:
    """out = x @ weight.T + bias."""

    weight: Matrix
    bias: F32 | None

    @classmethod
    def of(cls, weights: Weights, name: str) -> "Projection":
        bias = weights.vector(name + ".bias") if weights.has(name + ".bias") else None
        return cls(weights.matrix(name + ".weight"), bias)

    def apply(self, ops: Ops, out: F32, x: Rows) -> None:
        """x is quantised already.   out (T, weight.rows)"""
        if x.quantized is None:
            ops.matmul_f32(out, x.values, self.weight)
        else:
            ops.matmul(out, x.quantized, self.weight)
        if self.bias is not None:
            ops.add(out, self.bias)
