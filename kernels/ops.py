"""The contract of the arithmetic: every op, once, with its shapes.

Three sides implement it, under the same names: kernels/reference.py (the float64 judge),
kernels/cpu (AVX2) and kernels/cuda (a GPU). What an op computes stands here; in which order it adds
stands in ARITHMETIC.md; how arrays lie in memory stands in LAYOUT.md.

Sizes: T tokens of one step, S sequences, R rows that want logits, H hidden, V vocabulary, D head
dimension. All activations are float32, C-contiguous, one row per token. Outputs come first and are
written, never returned.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from kernels.arrays import HOST, Arrays

F32 = npt.NDArray[np.float32]
F16 = npt.NDArray[np.float16]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
I8 = npt.NDArray[np.int8]
U8 = npt.NDArray[np.uint8]
U64 = npt.NDArray[np.uint64]

QUANT_BLOCK: Final = 32  # values that share one scale, in weights and in activations
BLOCK_TOKENS: Final = 256  # token positions of one KV block
STRIPE_KEYS: Final = 64  # keys of one attention stripe
MAX_PRODUCTS: Final = 8  # matrices of one project
SILU: Final = "silu"  # activations of a gate
GELU: Final = "gelu"  # its tanh form


@dataclass(frozen=True, slots=True)
class Matrix:
    """A weight matrix y = x @ W.T in the packed layout of LAYOUT.md.

    kind    "q4_0", "q4_1", "q8_0" or "f32"
    rows    output features
    cols    input features, a multiple of 32 unless kind is "f32"
    data    (num_bytes,) uint8, packed; usually a read-only view of the mapped pack
    """

    kind: str
    rows: int
    cols: int
    data: U8


@dataclass(frozen=True, slots=True)
class QuantizedRows:
    """Activations quantised per 32 values of one token's row.

    values  (T, K)       int8, -127..127
    scales  (T, K / 32)  float32, max |x| / 127; NaN when a value of the block is not finite
    sums    (T, K / 32)  int32, sum of the block's 32 values: for "minus 8" and for Q4_1's minimum
    """

    values: I8
    scales: F32
    sums: I32


@dataclass(frozen=True, slots=True)
class RopeTable:
    """cos and sin by position, made by kernels.tables without any libm.

    cos, sin   (max_positions, rotated / 2)  float32
    adjacent   True: element 2i pairs with 2i + 1 (llama); False: i with i + rotated / 2 (neox)
    """

    cos: F32
    sin: F32
    adjacent: bool


@dataclass(frozen=True, slots=True)
class KvArena:
    """All KV blocks of one pool.

    blocks  (num_blocks, num_layers, 2, num_kv_heads, BLOCK_TOKENS, D)  float16; index 2 is K then V
    """

    blocks: F16


@dataclass(frozen=True, slots=True)
class StateArena:
    """Recurrent memory of all sequences of one pool: one slot per sequence, of a fixed size.

    conv    (num_slots, num_linear_layers, taps - 1, channels)        float32, raw inputs of the
            last tokens, the oldest first
    delta   (num_slots, num_linear_layers, num_v_heads, D_v, D_k)     float32, S transposed

    What a slot holds before its sequence's first token is never read.
    """

    conv: F32
    delta: F32


def _no_slots() -> I32:
    return np.zeros(0, np.int32)


@dataclass(frozen=True, slots=True)
class Step:
    """The tokens of one step, as every op sees them.

    token_ids     (T,)             int32
    positions     (T,)             int32, position of the token in its sequence
    seq_index     (T,)             int32, row of block_tables; tokens of one sequence are neighbours
    slot_mapping  (T,)             int64, block_id * BLOCK_TOKENS + position % BLOCK_TOKENS
    block_tables  (S, max_blocks)  int32, padded with 0
    logit_rows    (R,)             int32, indices into [0, T) of the tokens whose logits are wanted
    state_slots   (S,)             int32, slot of each sequence's state; empty when a model has none

    Ops with state want the tokens of a sequence one after the other, no position left out, and no
    slot twice. A sequence whose first token here has position 0 starts from zero state.
    """

    token_ids: I32
    positions: I32
    seq_index: I32
    slot_mapping: I64
    block_tables: I32
    logit_rows: I32
    state_slots: I32 = field(default_factory=_no_slots)


class Ops(Protocol):
    """The ops. Each is a pure function; a row's bits depend on that row alone (law one).

    project, gated_project, add_norm and attend do what several others do, with the same bits, in
    one call: a step of a small model is many short calls.
    """

    name: str

    def embed(self, out: F32, table: Matrix, token_ids: I32) -> None:
        """out[t] = row token_ids[t] of table, dequantised.   out (T, H)"""

    def take_rows(self, out: F32, x: F32, rows: I32) -> None:
        """out[r] = x[rows[r]].   out (R, K), x (T, K), rows (R,) in [0, T); out is not x"""

    def quantize_rows(self, out: QuantizedRows, x: F32) -> None:
        """Round half to even of x * (127 / max|x|), by blocks of 32.   x (T, K), 32 divides K"""

    def matmul(self, out: F32, x: QuantizedRows, w: Matrix) -> None:
        """out = x @ w.T for quantised kinds.   out (T, w.rows), x (T, w.cols)"""

    def project(
        self,
        outs: tuple[F32, ...],
        x: QuantizedRows,
        weights: tuple[Matrix, ...],
        biases: tuple[F32 | None, ...],
    ) -> None:
        """matmul of several matrices that read the same x, and add of each bias that is there.

        outs[i] (T, weights[i].rows), biases[i] (weights[i].rows,) or None; 1 to MAX_PRODUCTS
        """

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
        """project to gate and up; gate = silu_mul or gelu_mul of both; out = gate, quantised.

        gate, up    (T, F), F a multiple of 32; up is left as projected
        activation  SILU or GELU
        """

    def matmul_f32(self, out: F32, x: F32, w: Matrix) -> None:
        """out = x @ w.T for kind "f32".   out (T, w.rows), x (T, w.cols)"""

    def add(self, out: F32, x: F32) -> None:
        """out += x.   (T, K); x may be (K,): a bias, added to every row"""

    def rms_norm(self, out: F32, x: F32, weight: F32, eps: float) -> None:
        """out[t] = x[t] / sqrt(mean(x[t]^2) + eps) * weight.   (T, K), weight (K,); out may be x.

        x may be columns of wider rows: any distance between rows.
        """

    def add_norm(
        self,
        normed: F32,
        quantized: QuantizedRows | None,
        hidden: F32,
        branch: F32 | None,
        weight: F32,
        eps: float,
    ) -> None:
        """add, rms_norm and quantize_rows: hidden += branch; normed = norm(hidden); quantized.

        normed, hidden, branch (T, K); without a branch nothing is added, and normed may be hidden
        """

    def rope(self, x: F32, positions: I32, table: RopeTable) -> None:
        """Rotate in place.   x (T, heads, D); dims past the table's width pass through"""

    def store_kv(self, kv: KvArena, layer: int, k: F32, v: F32, slot_mapping: I64) -> None:
        """Write K and V of the step's tokens as float16, saturated.  k, v (T, num_kv_heads, D)"""

    def l2_norm(self, out: F32, x: F32, eps: float, scale: float) -> None:
        """out = x / sqrt(sum(x^2) + eps) * scale, per head.   (T, heads, D); out may be x.

        x may be columns of wider rows: any distance between tokens.
        """

    def attention(
        self, out: F32, q: F32, kv: KvArena, layer: int, step: Step, scale: float, window: int = 0
    ) -> None:
        """Each token against the keys of its sequence up to its own; K and V are stored.

        window 0: positions 0..p; W: the last W of them, p - W < j <= p.
        out, q (T, num_heads, D). Head h reads kv head h // (num_heads // num_kv_heads).
        out must not overlap q.
        Source: Dao et al. 2022, arXiv:2205.14135; paged form: Kwon et al. 2023, arXiv:2309.06180.
        """

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
        """rope of q and k, store_kv, attention and quantize_rows of what it gives.

        out, q (T, num_heads, D); k, v (T, num_kv_heads, D); quantized (T, num_heads * D) or None
        """

    def silu_mul(self, out: F32, gate: F32, up: F32) -> None:
        """out = gate / (1 + exp(-gate)) * up.   (T, K); out may be gate"""

    def gelu_mul(self, out: F32, gate: F32, up: F32) -> None:
        """out = gate / 2 * (1 + tanh(sqrt(2 / pi) * (gate + 0.044715 gate^3))) * up, as silu_mul"""

    def sigmoid_mul(self, out: F32, gate: F32, up: F32) -> None:
        """out = up / (1 + exp(-gate)).   (rows, K); out may be up or gate.

        gate may be columns of wider rows: any distance between rows.
        """

    def scale(self, out: F32, factor: float) -> None:
        """out *= factor, itself rounded to float32.   any shape, contiguous"""

    def conv1d(
        self, out: F32, x: F32, state: StateArena, layer: int, weight: F32, step: Step
    ) -> None:
        """Depthwise causal convolution over a sequence's tokens, then SiLU.

        out, x   (T, channels)      out must not overlap x
        layer    index into state.conv: linear layers are counted alone
        weight   (channels, taps)   the last tap multiplies the token itself

        The last taps - 1 inputs of each sequence are left in state.conv.
        """

    def delta_gates(self, decay: F32, beta: F32, a: F32, b: F32, ssm_a: F32, dt_bias: F32) -> None:
        """decay = exp(ssm_a * ln(1 + exp(a + dt_bias))), beta = 1 / (1 + exp(-b)).

        decay, beta, a, b (T, num_v_heads); ssm_a (negative), dt_bias (num_v_heads,)
        """

    def gated_delta_rule(
        self, out: F32, q: F32, k: F32, v: F32, decay: F32, beta: F32,
        state: StateArena, layer: int, step: Step,
    ) -> None:  # fmt: skip
        """The recurrence of a linear layer, token after token; leaves the state of the last one.

        out, v        (T, num_v_heads, D_v)   v may be columns of wider rows; out is no input
        q, k          (T, num_k_heads, D_k)   normalised; v head j reads head j % num_k_heads
        decay, beta   (T, num_v_heads)

        S = decay S;  e = beta (v - S^T k);  S = S + k e^T;  out = S^T q.   S is (D_k, D_v)
        Source: Yang et al. 2024, arXiv:2412.06464.
        """

    def exp(self, out: F32, x: F32) -> None:
        """The one exp of ARITHMETIC.md, elementwise.   any shape, contiguous; out may be x"""

    def log(self, out: F32, x: F32) -> None:
        """The one natural logarithm, elementwise, x > 0.   any shape, contiguous; out may be x"""

    def logits_sum(self, out: U64, logits: F32) -> None:
        """out[r] = sum over i of bits(logits[r, i]) * (2i + 1) mod 2^64.   logits (R, V)"""

    def logits_argmax(self, out: I32, logits: F32) -> None:
        """Index of the largest logit, the lowest among equals; -1 when a logit is not finite."""


def conv_shape(num_slots: int, num_layers: int, taps: int, channels: int) -> Sequence[int]:
    """Shape of StateArena.conv."""
    return (num_slots, num_layers, taps - 1, channels)


def delta_shape(
    num_slots: int, num_layers: int, num_v_heads: int, value_dim: int, key_dim: int
) -> Sequence[int]:
    """Shape of StateArena.delta."""
    return (num_slots, num_layers, num_v_heads, value_dim, key_dim)


def quantized_rows(num_tokens: int, cols: int, arrays: Arrays = HOST) -> QuantizedRows:
    """Room for num_tokens quantised rows of cols values."""
    assert cols % QUANT_BLOCK == 0, cols
    shape = (num_tokens, cols // QUANT_BLOCK)
    return QuantizedRows(
        arrays.reserve((num_tokens, cols), np.int8),
        arrays.reserve(shape, np.float32),
        arrays.reserve(shape, np.int32),
    )


def first_rows(x: QuantizedRows, num_tokens: int) -> QuantizedRows:
    """The first num_tokens rows, as views."""
    return QuantizedRows(x.values[:num_tokens], x.scales[:num_tokens], x.sums[:num_tokens])


def kv_shape(num_blocks: int, num_layers: int, num_kv_heads: int, head_dim: int) -> Sequence[int]:
    """Shape of KvArena.blocks."""
    return (num_blocks, num_layers, 2, num_kv_heads, BLOCK_TOKENS, head_dim)
