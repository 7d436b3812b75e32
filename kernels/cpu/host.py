"""The ops on the CPU: each asserts its shapes and calls one kernel.

Nothing is computed here and nothing is kept. Types, contiguity, overlap and index ranges, and the
shapes of what every layer calls, are asserted by the extension (module_*.c), where that costs
nanoseconds: Python between two kernels finds its caches cold, some 3 us an op. Every op is a pure
function of its inputs whatever the thread count, so two CpuOps give the same bits.
"""

from typing import Final

import numpy as np

from kernels.cpu import _cpu
from kernels.ops import (
    F32,
    GELU,
    I32,
    I64,
    SILU,
    U64,
    KvArena,
    Matrix,
    QuantizedRows,
    RopeTable,
    StateArena,
    Step,
)

NO_BIAS: Final = (None,)  # of one product
MAX_HEAD_DIM = 512  # of attention.c
MAX_TAPS = 8  # of conv.c
MAX_KEY_DIM = 256  # of delta.c


def usable_isas() -> tuple[str, ...]:
    """Instruction sets this processor has of "avx2", "avx512" (VNNI), "amx" (int8)."""
    return _cpu.usable_isas()


class CpuOps:
    """kernels.ops.Ops in AVX2, and for the quantised products in what is better and there.

    threads   at most so many work on one op, the caller included; 1..256
    isa       one of usable_isas(); the last of them when absent. All give the same bits
    """

    def __init__(self, threads: int, isa: str | None = None) -> None:
        assert 1 <= threads <= 256, threads
        isas = usable_isas()
        assert isa is None or isa in isas, f"{isa} is not among {isas}"
        self.name = "cpu"
        self.threads = threads
        self.isa = isa or isas[-1]
        self._isa = isas.index(self.isa)

    def embed(self, out: F32, table: Matrix, token_ids: I32) -> None:
        num_tokens = token_ids.size
        assert out.shape == (num_tokens, table.cols), (out.shape, num_tokens, table.cols)
        assert table.kind == "f32" or table.cols % 32 == 0, table.cols
        args = (num_tokens, table.rows, table.cols, out, table.data, token_ids)
        if table.kind == "q8_0":
            _cpu.embed_q8_0(*args)
        elif table.kind == "q4_0":
            _cpu.embed_q4_0(*args)
        elif table.kind == "q4_1":
            _cpu.embed_q4_1(*args)
        else:
            assert table.kind == "f32", table.kind
            _cpu.embed_f32(*args)

    def take_rows(self, out: F32, x: F32, rows: I32) -> None:
        assert out.shape == (rows.size, x.shape[1]), (out.shape, rows.size, x.shape)
        np.take(x, rows, axis=0, out=out)

    def quantize_rows(self, out: QuantizedRows, x: F32) -> None:
        _cpu.quantize_rows(self.threads, out, x)

    def matmul(self, out: F32, x: QuantizedRows, w: Matrix) -> None:
        _cpu.project(self.threads, self._isa, (out,), x, (w,), NO_BIAS)

    def project(
        self,
        outs: tuple[F32, ...],
        x: QuantizedRows,
        weights: tuple[Matrix, ...],
        biases: tuple[F32 | None, ...],
    ) -> None:
        _cpu.project(self.threads, self._isa, outs, x, weights, biases)

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
        is_gelu = int(activation == GELU)
        _cpu.gated_project(
            self.threads, self._isa, is_gelu, out, (gate, up), x, weights, biases
        )  # fmt: skip

    def matmul_f32(self, out: F32, x: F32, w: Matrix) -> None:
        num_tokens, cols = x.shape
        assert w.kind == "f32", f"matmul_f32 takes kind f32, not {w.kind}"
        assert cols == w.cols and out.shape == (num_tokens, w.rows), (out.shape, x.shape, w)
        _cpu.matmul_f32(num_tokens, w.rows, cols, self.threads, out, x, w.data)

    def add(self, out: F32, x: F32) -> None:
        rows, cols = out.shape
        is_bias = x.ndim == 1
        assert x.shape == ((cols,) if is_bias else (rows, cols)), (out.shape, x.shape)
        _cpu.add(rows, cols, int(is_bias), out, x)

    def rms_norm(self, out: F32, x: F32, weight: F32, eps: float) -> None:
        rows, cols = x.shape
        assert out.shape == x.shape and weight.shape == (cols,), (out.shape, x.shape, weight.shape)
        _cpu.rms_norm(rows, cols, self.threads, out, x, weight, eps)

    def add_norm(
        self,
        normed: F32,
        quantized: QuantizedRows | None,
        hidden: F32,
        branch: F32 | None,
        weight: F32,
        eps: float,
    ) -> None:
        _cpu.add_norm(self.threads, normed, quantized, hidden, branch, weight, eps)

    def l2_norm(self, out: F32, x: F32, eps: float, scale: float) -> None:
        num_tokens, heads, head_dim = x.shape
        assert out.shape == x.shape, (out.shape, x.shape)
        _cpu.l2_norm(num_tokens, heads, head_dim, self.threads, out, x, eps, scale)

    def rope(self, x: F32, positions: I32, table: RopeTable) -> None:
        num_tokens, heads, head_dim = x.shape
        table_rows, half = table.cos.shape
        assert 2 * half <= head_dim and table.sin.shape == table.cos.shape, (x.shape, half)
        _cpu.rope(
            num_tokens, heads, head_dim, half, table_rows, int(table.adjacent),
            x, positions, table.cos, table.sin,
        )  # fmt: skip

    def store_kv(self, kv: KvArena, layer: int, k: F32, v: F32, slot_mapping: I64) -> None:
        _cpu.store_kv(kv.blocks, layer, k, v, slot_mapping)

    def attention(
        self, out: F32, q: F32, kv: KvArena, layer: int, step: Step, scale: float, window: int = 0
    ) -> None:
        threads, isa = self.threads, self._isa
        _cpu.attention(threads, isa, window, scale, out, q, kv.blocks, layer, step)

    def attend(
        self, out: F32, quantized: QuantizedRows | None, q: F32, k: F32, v: F32, table: RopeTable,
        kv: KvArena, layer: int, step: Step, scale: float, window: int = 0,
    ) -> None:  # fmt: skip
        _cpu.attend(
            self.threads, self._isa, window, scale, out, q, kv.blocks, layer, step,
            quantized, k, v, table,
        )  # fmt: skip

    def silu_mul(self, out: F32, gate: F32, up: F32) -> None:
        assert out.shape == gate.shape == up.shape, (out.shape, gate.shape, up.shape)
        _cpu.silu_mul(out.size, self.threads, out, gate, up)

    def gelu_mul(self, out: F32, gate: F32, up: F32) -> None:
        assert out.shape == gate.shape == up.shape, (out.shape, gate.shape, up.shape)
        _cpu.gelu_mul(out.size, self.threads, out, gate, up)

    def sigmoid_mul(self, out: F32, gate: F32, up: F32) -> None:
        rows, cols = gate.shape
        assert out.shape == gate.shape == up.shape, (out.shape, gate.shape, up.shape)
        _cpu.sigmoid_mul(rows, cols, self.threads, out, gate, up)

    def scale(self, out: F32, factor: float) -> None:
        _cpu.scale(out.size, out, factor)

    def conv1d(
        self, out: F32, x: F32, state: StateArena, layer: int, weight: F32, step: Step
    ) -> None:
        num_tokens, channels = x.shape
        num_slots, num_layers, kept, width = state.conv.shape
        taps = weight.shape[1]
        assert out.shape == x.shape and width == channels, (out.shape, x.shape, width)
        assert weight.shape[0] == channels and channels % 8 == 0, (weight.shape, channels)
        assert kept == taps - 1 and 2 <= taps <= MAX_TAPS, (kept, taps)
        _cpu.conv1d(
            num_tokens, channels, taps, step.state_slots.size, self.threads, out, x, weight,
            num_slots, num_layers, layer, state.conv,
            step.positions, step.seq_index, step.state_slots,
        )  # fmt: skip

    def delta_gates(self, decay: F32, beta: F32, a: F32, b: F32, ssm_a: F32, dt_bias: F32) -> None:
        num_tokens, heads = a.shape
        assert decay.shape == beta.shape == a.shape == b.shape, (decay.shape, beta.shape, b.shape)
        assert ssm_a.shape == (heads,) == dt_bias.shape, (ssm_a.shape, dt_bias.shape)
        _cpu.delta_gates(num_tokens, heads, decay, beta, a, b, ssm_a, dt_bias)

    def gated_delta_rule(
        self, out: F32, q: F32, k: F32, v: F32, decay: F32, beta: F32,
        state: StateArena, layer: int, step: Step,
    ) -> None:  # fmt: skip
        num_tokens, heads, value_dim = v.shape
        _, k_heads, key_dim = k.shape
        num_slots, num_layers = state.delta.shape[:2]
        assert state.delta.shape[2:] == (heads, value_dim, key_dim), (state.delta.shape, v.shape)
        assert k.shape == (num_tokens, k_heads, key_dim) == q.shape, (k.shape, q.shape)
        assert out.shape == v.shape and heads % k_heads == 0, (out.shape, v.shape, k_heads)
        assert decay.shape == (num_tokens, heads) == beta.shape, (decay.shape, beta.shape)
        assert value_dim % 8 == 0 and key_dim % 8 == 0, (value_dim, key_dim)
        assert key_dim <= MAX_KEY_DIM, key_dim
        _cpu.gated_delta_rule(
            num_tokens, heads, k_heads, value_dim, key_dim, step.state_slots.size, self.threads,
            out, q, k, v, decay, beta,
            num_slots, num_layers, layer, state.delta,
            step.positions, step.seq_index, step.state_slots,
        )  # fmt: skip

    def exp(self, out: F32, x: F32) -> None:
        assert out.shape == x.shape, (out.shape, x.shape)
        _cpu.exp(out.size, out, x)

    def log(self, out: F32, x: F32) -> None:
        assert out.shape == x.shape, (out.shape, x.shape)
        _cpu.log(out.size, out, x)

    def logits_sum(self, out: U64, logits: F32) -> None:
        rows, vocab = logits.shape
        assert out.shape == (rows,), (out.shape, logits.shape)
        _cpu.logits_sum(rows, vocab, self.threads, out, logits)

    def logits_argmax(self, out: I32, logits: F32) -> None:
        rows, vocab = logits.shape
        assert out.shape == (rows,), (out.shape, logits.shape)
        _cpu.logits_argmax(rows, vocab, self.threads, out, logits)
