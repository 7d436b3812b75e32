"""The fused ops as their parts, one after the other: for the sides that gain nothing by fusing.

What these give, bit for bit, is what a kernel that fuses them has to give.
"""

from typing import Protocol

from kernels.ops import F32, GELU, KvArena, Matrix, Ops, QuantizedRows, RopeTable, Step


class FusedFromParts(Ops, Protocol):
    """kernels.ops.Ops, of which the rest is to be implemented."""

    def project(
        self,
        outs: tuple[F32, ...],
        x: QuantizedRows,
        weights: tuple[Matrix, ...],
        biases: tuple[F32 | None, ...],
    ) -> None:
        for out, weight, bias in zip(outs, weights, biases, strict=True):
            self.matmul(out, x, weight)
            if bias is not None:
                self.add(out, bias)

    def gated_project(
        self,
        out: QuantizedRows,
        gate: F32,
        up: F32,
        x: QuantizedRows,
        weights: tuple[Matrix, ...],
        biases: tuple[F32 | None, ...],
        activation: str,
    ) -> None:
        self.project((gate, up), x, weights, biases)
        activate = self.gelu_mul if activation == GELU else self.silu_mul
        activate(gate, gate, up)
        self.quantize_rows(out, gate)

    def add_norm(
        self,
        normed: F32,
        quantized: QuantizedRows | None,
        hidden: F32,
        branch: F32 | None,
        weight: F32,
        eps: float,
    ) -> None:
        if branch is not None:
            self.add(hidden, branch)
        self.rms_norm(normed, hidden, weight, eps)
        if quantized is not None:
            self.quantize_rows(quantized, normed)

    def attend(
        self,
        out: F32,
        quantized: QuantizedRows | None,
        q: F32,
        k: F32,
        v: F32,
        table: RopeTable,
        kv: KvArena,
        layer: int,
        step: Step,
        scale: float,
        window: int = 0,
    ) -> None:
        self.rope(q, step.positions, table)
        self.rope(k, step.positions, table)
        self.store_kv(kv, layer, k, v, step.slot_mapping)
        self.attention(out, q, kv, layer, step, scale, window)
        if quantized is not None:
            self.quantize_rows(quantized, out.reshape(len(out), -1))
