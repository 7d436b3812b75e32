"""The pieces that all graphs share: a projection, rows of activations, what a step works with.

Arrays are allocated once, for the largest step; a step works in views of their first rows. Nothing
here computes a float: all arithmetic is a call of ops.
"""

from dataclasses import dataclass, fields
from typing import Any, TypeVar

import numpy as np

from kernels.arrays import HOST, Arrays
from kernels.ops import (
    F32,
    QUANT_BLOCK,
    Matrix,
    Ops,
    QuantizedRows,
    first_rows,
    quantized_rows,
)
from workers.model.gguf_file import Expected
from workers.model.pack import Weights

Space = TypeVar("Space")


@dataclass(frozen=True, slots=True)
class Rows:
    """The input of a projection: one row of activations per token, and room for its quantised form.

    values     (T, K) float32
    quantized  None where K is no multiple of 32: such matrices stay float32
    """

    values: F32
    quantized: QuantizedRows | None

    @classmethod
    def allocate(cls, num_rows: int, cols: int, arrays: Arrays = HOST) -> "Rows":
        quantized = None if cols % QUANT_BLOCK else quantized_rows(num_rows, cols, arrays)
        return cls(arrays.reserve((num_rows, cols), np.float32), quantized)

    def first(self, num_rows: int) -> "Rows":
        quantized = self.quantized and first_rows(self.quantized, num_rows)
        return Rows(self.values[:num_rows], quantized)

    def quantize(self, ops: Ops) -> None:
        """Make the quantised form, once for all projections that read these rows."""
        if self.quantized is not None:
            ops.quantize_rows(self.quantized, self.values)


@dataclass(frozen=True, slots=True)
class Heads:
    """One row per token, seen whole, by head, and with a row for each head.

    flat    (T, heads * D) float32
    split   (T, heads, D), the same bytes
    single  (T * heads, D), the same bytes
    """

    flat: F32
    split: F32
    single: F32

    @classmethod
    def allocate(
        cls, num_rows: int, num_heads: int, head_dim: int, arrays: Arrays = HOST
    ) -> "Heads":
        return cls.of(arrays.reserve((num_rows, num_heads * head_dim), np.float32), head_dim)

    @classmethod
    def of(cls, flat: F32, head_dim: int) -> "Heads":
        """Heads of rows that are there already."""
        single = flat.reshape(-1, head_dim)
        return cls(flat, single.reshape(len(flat), -1, head_dim), single)

    def first(self, num_rows: int) -> "Heads":
        return Heads.of(self.flat[:num_rows], self.split.shape[2])


def first_tokens(space: Space, num_tokens: int) -> Space:
    """The same arrays for a smaller step; each field is None, an array, or has a first()."""
    views: dict[str, Any] = {}
    for field in fields(space):  # type: ignore[arg-type]  # every Space is a dataclass
        part: Any = getattr(space, field.name)
        if isinstance(part, np.ndarray):
            views[field.name] = part[:num_tokens]
        else:
            views[field.name] = None if part is None else part.first(num_tokens)
    return type(space)(**views)


@dataclass(frozen=True, slots=True)
class Projections:
    """out = x @ weight.T + bias, of one matrix or several that read the same rows.

    biases   (rows,) of each, or None
    """

    weights: tuple[Matrix, ...]
    biases: tuple[F32 | None, ...]

    @classmethod
    def of(cls, weights: Weights, *names: str) -> "Projections":
        def bias(name: str) -> F32 | None:
            return weights.vector(name + ".bias") if weights.has(name + ".bias") else None

        matrices = tuple(weights.matrix(name + ".weight") for name in names)
        return cls(matrices, tuple(bias(name) for name in names))

    def apply(self, ops: Ops, outs: tuple[F32, ...], x: Rows) -> None:
        """x is quantised already.   outs[i] (T, weights[i].rows)"""
        if x.quantized is not None:
            ops.project(outs, x.quantized, self.weights, self.biases)
            return
        for out, weight, bias in zip(outs, self.weights, self.biases, strict=True):
            ops.matmul_f32(out, x.values, weight)
            if bias is not None:
                ops.add(out, bias)


def projection_tensors(name: str, rows: int, cols: int, *, bias: str = "none") -> list[Expected]:
    """What a projection reads.   bias: "none", "optional" or "required" """
    weight = Expected(f"{name}.weight", (rows, cols))
    if bias == "none":
        return [weight]
    return [weight, Expected(f"{name}.bias", (rows,), is_optional=bias == "optional")]


def norm_tensor(name: str, values: int) -> Expected:
    """The weight of a norm over so many values."""
    return Expected(f"{name}.weight", (values,))
