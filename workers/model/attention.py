"""Attention of one layer: each token looks at the keys of its sequence, its own included.

q, k, v = projections of x
q, k    = each head normed by its own length, where the model has these norms
q, k    = turned by the token's position
out     = output( attention(q, K, V) )

gated: q's projection gives each head's query, then its gate, and the query has its norm;
out     = output( attention(q, K, V) * sigmoid(gate) )
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from kernels.ops import F32, Ops
from kernels.tables import GrowingRope
from workers.model.config import ModelConfig
from workers.model.gguf_file import Expected
from workers.model.layers import Projections, norm_tensor, projection_tensors
from workers.model.pack import Weights
from workers.model.workspace import Frame

ROPE_FACTORS: Final = "rope_freqs.weight"


def attention_tensors(
    config: ModelConfig, prefix: str, *, bias: str = "none", has_head_norms: bool = False
) -> list[Expected]:
    """What an Attention reads.   bias: of q, k and v, as in projection_tensors"""
    hidden, q_width = config.hidden, config.num_heads * config.head_dim
    kv_width = config.num_kv_heads * config.head_dim
    q_rows = 2 * q_width if config.has_attention_gate else q_width
    expected = projection_tensors(prefix + "attn_q", q_rows, hidden, bias=bias)
    expected += projection_tensors(prefix + "attn_k", kv_width, hidden, bias=bias)
    expected += projection_tensors(prefix + "attn_v", kv_width, hidden, bias=bias)
    expected += projection_tensors(prefix + "attn_output", hidden, q_width)
    if has_head_norms:
        names = (prefix + "attn_q_norm", prefix + "attn_k_norm")
        expected += [norm_tensor(name, config.head_dim) for name in names]
    return expected


@dataclass(frozen=True, slots=True)
class Attention:
    """The weights and constants of one layer's attention.

    q_norm, k_norm  (D,) of each head, or None
    kv_layer        its place in the KV arena: layers without KV are not counted
    window          keys it sees, its own included; 0 is all
    """

    qkv: Projections
    output: Projections
    q_norm: F32 | None
    k_norm: F32 | None
    rms_eps: float
    rope: GrowingRope
    kv_layer: int
    scale: float
    window: int = 0

    @classmethod
    def of(
        cls, weights: Weights, prefix: str, rope: GrowingRope, kv_layer: int, window: int = 0
    ) -> "Attention":
        def head_norm(name: str) -> F32 | None:
            return weights.vector(prefix + name) if weights.has(prefix + name) else None

        return cls(
            qkv=Projections.of(weights, *(f"{prefix}attn_{name}" for name in "qkv")),
            output=Projections.of(weights, prefix + "attn_output"),
            q_norm=head_norm("attn_q_norm.weight"),
            k_norm=head_norm("attn_k_norm.weight"),
            rms_eps=weights.config.rms_eps,
            rope=rope,
            kv_layer=kv_layer,
            scale=weights.config.attention_scale,
            window=window,
        )

    def apply(self, ops: Ops, frame: Frame) -> None:
        """A Branch of workers.model.decoder."""
        space, x = frame.space.attention, frame.space.normed
        q, k, v, mixed, gated = space.q, space.k, space.v, space.mixed, space.q_and_gate
        self.qkv.apply(ops, ((gated or q).flat, k.flat, v.flat), x)
        if self.q_norm is not None and self.k_norm is not None:
            queries = (gated or q).single[:, : q.single.shape[1]]
            ops.rms_norm(q.single, queries, self.q_norm, self.rms_eps)
            ops.rms_norm(k.single, k.single, self.k_norm, self.rms_eps)
        table = self.rope.covering(frame.num_positions)
        ops.attend(
            space.mixed_heads.split, None if gated else mixed.quantized, q.split, k.split, v.split,
            table, frame.kv, self.kv_layer, frame.step, self.scale, self.window,
        )  # fmt: skip
        if gated:
            heads = space.mixed_heads.single
            ops.sigmoid_mul(heads, gated.single[:, heads.shape[1] :], heads)
            mixed.quantize(ops)
        self.output.apply(ops, (frame.space.branch,), mixed)


def full_rope(weights: Weights, *, adjacent: bool) -> GrowingRope:
    """The table of layers that see all keys.

    Frequencies are divided by Llama 3's own factors, or all by the linear scaling's.
    adjacent  pairs of neighbours turn, else the halves of a head
    """
    config = weights.config
    factors = None
    if weights.has(ROPE_FACTORS):
        factors = weights.values(ROPE_FACTORS)
    elif config.rope_factor != 1.0:
        factors = np.full(config.rope_dims // 2, config.rope_factor, np.float32)
    theta, arrays = config.rope_theta, weights.arrays
    return GrowingRope(theta, config.rope_dims, config.context_length, factors, adjacent, arrays)
