"""The ops on a GPU: each asserts its arrays, decides the grid and launches one or two kernels.

Nothing is computed here. The kernels check nothing, so whatever would read or write outside of
memory is refused here: shapes, types, contiguity, overlap and the range of indices. Attention and
the ops with state have files of their own.
"""

from typing import Final

import numpy as np

from kernels.cpu.host import CpuOps
from kernels.cuda.attention import Attention, store_kv
from kernels.cuda.checks import apart, checked, is_inside, rows_of
from kernels.cuda.geometry import matmul_launch, up
from kernels.cuda.launch import THREADS, Kernels, Launcher, Long
from kernels.cuda.state import conv1d, gated_delta_rule
from kernels.fused import FusedFromParts
from kernels.layout import FORMATS, packed_bytes
from kernels.ops import (
    F32,
    GELU,
    I32,
    I64,
    MAX_PRODUCTS,
    SILU,
    U64,
    KvArena,
    Matrix,
    QuantizedRows,
    RopeTable,
    StateArena,
    Step,
)

WIDE_ROW: Final = 1024  # from here on, a norm takes a block a row


class CudaOps(FusedFromParts):
    """kernels.ops.Ops by the kernels of kernels/cuda. What is fused there is its parts here."""

    def __init__(self, launcher: Launcher) -> None:
        self.name = "gpu"
        self._kernels = Kernels(launcher)
        self._in_ram = CpuOps(1)

    def embed(self, out: F32, table: Matrix, token_ids: I32) -> None:
        checked(out, np.float32, (token_ids.size, table.cols), is_written=True)
        checked(token_ids, np.int32)
        _check_matrix(table)
        is_inside(token_ids, 0, table.rows)
        n, cols = out.size, table.cols
        self._kernels.each(f"embed_{table.kind}", n, out, table.data, token_ids, Long(n), cols)

    def take_rows(self, out: F32, x: F32, rows: I32) -> None:
        num_tokens, cols = x.shape
        checked(out, np.float32, (rows.size, cols), is_written=True)
        checked(x, np.float32)
        checked(rows, np.int32)
        is_inside(rows, 0, num_tokens)
        assert not np.may_share_memory(out, x), "take_rows: out overlaps x"
        self._kernels.each("take_rows", out.size, out, x, rows, Long(out.size), cols)

    def quantize_rows(self, out: QuantizedRows, x: F32) -> None:
        rows, cols = x.shape
        _check_quantized(out, rows, cols, is_written=True)
        checked(x, np.float32)
        n = rows * cols // 32
        arrays = (out.values, out.scales, out.sums, x)
        self._kernels.run("quantize_rows", (up(n, 32),), THREADS, *arrays, n)

    def matmul(self, out: F32, x: QuantizedRows, w: Matrix) -> None:
        num_tokens, cols = x.values.shape
        assert cols == w.cols and w.kind in FORMATS, (w.kind, w.cols, cols)
        _check_quantized(x, num_tokens, cols)
        _check_matrix(w)
        checked(out, np.float32, (num_tokens, w.rows), is_written=True)
        chosen = matmul_launch(w.kind, num_tokens, w.rows)
        sizes = (w.rows, cols) if chosen.is_few else (num_tokens, w.rows, cols)
        arrays = (out, x.values, x.scales, x.sums, w.data)
        self._kernels.run(
            chosen.kernel, chosen.grid, chosen.block, *arrays, *sizes, shared=chosen.shared_bytes
        )

    def project(
        self,
        outs: tuple[F32, ...],
        x: QuantizedRows,
        weights: tuple[Matrix, ...],
        biases: tuple[F32 | None, ...],
    ) -> None:
        assert isinstance(outs, tuple) and isinstance(weights, tuple), "tuples, not lists"
        counts = (len(outs), len(weights), len(biases))
        assert counts == (counts[0],) * 3 and 1 <= counts[0] <= MAX_PRODUCTS, counts
        assert not any(np.may_share_memory(a, b) for i, a in enumerate(outs) for b in outs[:i])
        super().project(outs, x, weights, biases)

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
        assert activation in (SILU, GELU), activation
        _check_quantized(out, *gate.shape, is_written=True)
        super().gated_project(out, gate, up, x, weights, biases, activation)

    def matmul_f32(self, out: F32, x: F32, w: Matrix) -> None:
        num_tokens, cols = x.shape
        assert w.kind == "f32" and cols == w.cols, (w.kind, w.cols, cols)
        _check_matrix(w)
        checked(x, np.float32)
        checked(out, np.float32, (num_tokens, w.rows), is_written=True)
        grid = up(w.rows, 16), up(num_tokens, 4)
        self._kernels.run("matmul_f32", grid, 256, out, x, w.data, num_tokens, w.rows, cols)

    def add(self, out: F32, x: F32) -> None:
        cols = out.shape[1]
        checked(out, np.float32, is_written=True)
        checked(x, np.float32, (cols,) if x.ndim == 1 else out.shape)
        stride = 0 if x.ndim == 1 else cols
        self._kernels.each("add", out.size, out, x, Long(out.size), cols, stride)

    def rms_norm(self, out: F32, x: F32, weight: F32, eps: float) -> None:
        rows, cols = x.shape
        stride = rows_of(x, out)
        checked(weight, np.float32, (cols,))
        arrays, eps = (out, x, weight), float(eps)
        if cols >= WIDE_ROW:
            self._kernels.run("rms_norm", (rows,), THREADS, *arrays, cols, stride, eps)
        else:
            sizes = (rows, cols, stride, eps)
            self._kernels.run("rms_norm_rows", (up(rows, 8),), THREADS, *arrays, *sizes)

    def add_norm(
        self,
        normed: F32,
        quantized: QuantizedRows | None,
        hidden: F32,
        branch: F32 | None,
        weight: F32,
        eps: float,
    ) -> None:
        if quantized is not None:
            _check_quantized(quantized, *hidden.shape, is_written=True)
        if branch is not None:
            assert not np.may_share_memory(normed, hidden), "normed overlaps hidden"
            assert not np.may_share_memory(branch, hidden), "branch overlaps hidden"
            assert not np.may_share_memory(branch, normed), "branch overlaps normed"
        super().add_norm(normed, quantized, hidden, branch, weight, eps)

    def l2_norm(self, out: F32, x: F32, eps: float, scale: float) -> None:
        num_tokens, heads, head_dim = x.shape
        stride, rows = rows_of(x, out), num_tokens * heads
        sizes = (rows, heads, head_dim, stride, float(eps), float(scale))
        self._kernels.run("l2_norm", (up(rows, 8),), THREADS, out, x, *sizes)

    def rope(self, x: F32, positions: I32, table: RopeTable) -> None:
        num_tokens, heads, head_dim = x.shape
        table_rows, half = table.cos.shape
        assert 2 * half <= head_dim, (half, head_dim)
        checked(x, np.float32, is_written=True)
        checked(positions, np.int32, (num_tokens,))
        checked(table.cos, np.float32)
        checked(table.sin, np.float32, table.cos.shape)
        is_inside(positions, 0, table_rows)
        n = num_tokens * heads * half
        sizes = (Long(n), heads, head_dim, half, int(table.adjacent))
        self._kernels.each("rope", n, x, positions, table.cos, table.sin, *sizes)

    def store_kv(self, kv: KvArena, layer: int, k: F32, v: F32, slot_mapping: I64) -> None:
        store_kv(self._kernels, kv, layer, k, v, slot_mapping)

    def attention(
        self, out: F32, q: F32, kv: KvArena, layer: int, step: Step, scale: float, window: int = 0
    ) -> None:
        Attention(self._kernels, out, q, kv, layer, step, scale, window).run()

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
        assert not np.may_share_memory(q, k), "queries overlap keys"
        if quantized is not None:
            _check_quantized(quantized, *out.reshape(len(out), -1).shape, is_written=True)
        super().attend(out, quantized, q, k, v, table, kv, layer, step, scale, window)

    def silu_mul(self, out: F32, gate: F32, up: F32) -> None:
        self._gate("silu_mul", out, gate, up)

    def gelu_mul(self, out: F32, gate: F32, up: F32) -> None:
        self._gate("gelu_mul", out, gate, up)

    def _gate(self, kernel: str, out: F32, gate: F32, up: F32) -> None:
        checked(out, np.float32, gate.shape, is_written=True)
        checked(gate, np.float32)
        checked(up, np.float32, gate.shape)
        apart(out, gate, up)
        self._kernels.each(kernel, out.size, out, gate, up, Long(out.size))

    def sigmoid_mul(self, out: F32, gate: F32, up: F32) -> None:
        stride = rows_of(gate, out)
        checked(up, np.float32, out.shape)
        apart(out, up)
        n, cols = out.size, out.shape[1]
        self._kernels.each("sigmoid_mul", n, out, gate, up, Long(n), cols, stride)

    def scale(self, out: F32, factor: float) -> None:
        checked(out, np.float32, is_written=True)
        self._kernels.each("scale", out.size, out, Long(out.size), float(factor))

    def conv1d(
        self, out: F32, x: F32, state: StateArena, layer: int, weight: F32, step: Step
    ) -> None:
        conv1d(self._kernels, out, x, state, layer, weight, step)

    def delta_gates(self, decay: F32, beta: F32, a: F32, b: F32, ssm_a: F32, dt_bias: F32) -> None:
        heads = a.shape[1]
        for out in (decay, beta):
            checked(out, np.float32, a.shape, is_written=True)
            apart(out, a, b)
        assert not np.may_share_memory(decay, beta), "delta_gates: decay overlaps beta"
        checked(a, np.float32)
        checked(b, np.float32, a.shape)
        checked(ssm_a, np.float32, (heads,))
        checked(dt_bias, np.float32, (heads,))
        arrays = (decay, beta, a, b, ssm_a, dt_bias)
        self._kernels.each("delta_gates", a.size, *arrays, Long(a.size), heads)

    def gated_delta_rule(
        self, out: F32, q: F32, k: F32, v: F32, decay: F32, beta: F32,
        state: StateArena, layer: int, step: Step,
    ) -> None:  # fmt: skip
        gated_delta_rule(self._kernels, out, q, k, v, decay, beta, state, layer, step)

    def exp(self, out: F32, x: F32) -> None:
        """What lies in RAM, as a sampler's scores do, has its exp there: the same bits, nearer."""
        if self._kernels.reaches(x):
            self._map("exp_all", out, x)
        else:
            self._in_ram.exp(out, x)

    def log(self, out: F32, x: F32) -> None:
        if self._kernels.reaches(x):
            self._map("log_all", out, x)
        else:
            self._in_ram.log(out, x)

    def _map(self, kernel: str, out: F32, x: F32) -> None:
        checked(out, np.float32, x.shape, is_written=True)
        checked(x, np.float32)
        apart(out, x)
        self._kernels.each(kernel, out.size, out, x, Long(out.size))

    def logits_sum(self, out: U64, logits: F32) -> None:
        """out is the host's: 8 bytes of each row of logits cross to it."""
        rows, vocab = logits.shape
        checked(out, np.uint64, (rows,), is_written=True)
        checked(logits, np.float32)
        sums = self._kernels.scratch(rows * 8)
        self._kernels.each("clear_u64", rows, sums, rows)
        self._kernels.run("logits_sum", (up(vocab, 4096), rows), THREADS, sums, logits, vocab)
        self._kernels.fetch(out, sums)

    def logits_argmax(self, out: I32, logits: F32) -> None:
        """out is the host's: 4 bytes of each row of logits cross to it."""
        rows, vocab = logits.shape
        checked(out, np.int32, (rows,), is_written=True)
        checked(logits, np.float32)
        keys = self._kernels.scratch(rows * 12)
        best = Long(keys.value + rows * 8)
        self._kernels.each("clear_u64", rows, keys, rows)
        self._kernels.run("logits_argmax", (up(vocab, 4096), rows), THREADS, keys, logits, vocab)
        self._kernels.each("logits_argmax_end", rows, best, keys, rows)
        self._kernels.fetch(out, best)


def _check_matrix(w: Matrix) -> None:
    checked(w.data, np.uint8, (packed_bytes(w.kind, w.rows, w.cols),))
    assert w.data.ctypes.data % 16 == 0, "packed weights lie at a multiple of 16 bytes"


def _check_quantized(x: QuantizedRows, rows: int, cols: int, *, is_written: bool = False) -> None:
    assert cols % 32 == 0, f"{cols} columns are no multiple of 32"
    checked(x.values, np.int8, (rows, cols), is_written=is_written)
    checked(x.scales, np.float32, (rows, cols // 32), is_written=is_written)
    checked(x.sums, np.int32, (rows, cols // 32), is_written=is_written)
