"""The llama graph: tokens of a step in, logits out. Mistral, SmolLM2 and others are llama, too.

    h = embedding of the token
    each layer:   x = norm(h)      h += output( attention( rope(q(x)), rope(k(x)), v(x) ) )
                  x = norm(h)      h += down( silu(gate(x)) * up(x) )
    logits = head( norm(h) ), for the rows that want them

Source: transformers' modeling_llama; RoPE pairs neighbours, for so GGUF stores the rows of q and k.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt
from typing import Final

import numpy as np

from kernels.ops import F32, I32, KvArena, Ops, RopeTable, Step
from kernels.tables import rope_table
from workers.model.config import ModelConfig
from workers.model.gguf_file import Expected
from workers.model.layers import Heads, Projection, Rows
from workers.model.pack import Weights

HEAD: Final = "output"
EMBEDDING: Final = "token_embd.weight"
ROPE_FACTORS: Final = "rope_freqs.weight"


def llama_tensors(config: ModelConfig) -> list[Expected]:
    """What a llama GGUF holds."""
    hidden, q_width = config.hidden, config.num_heads * config.head_dim
    kv_width = config.num_kv_heads * config.head_dim
    matrices = {
        "attn_q": (q_width, hidden),
        "attn_k": (kv_width, hidden),
        "attn_v": (kv_width, hidden),
        "attn_output": (hidden, q_width),
        "ffn_gate": (config.ffn, hidden),
        "ffn_up": (config.ffn, hidden),
        "ffn_down": (hidden, config.ffn),
    }
    expected = [
        Expected(EMBEDDING, (config.vocab_size, hidden)),
        Expected(f"{HEAD}.weight", (config.vocab_size, hidden), is_optional=True),
        Expected("output_norm.weight", (hidden,)),
        Expected(ROPE_FACTORS, (config.rope_dims // 2,), is_optional=True),
    ]
    for block in range(config.num_layers):
        prefix = f"blk.{block}."
        norms = ("attn_norm", "ffn_norm")
        expected += [Expected(f"{prefix}{norm}.weight", (hidden,)) for norm in norms]
        for name, shape in matrices.items():
            expected.append(Expected(f"{prefix}{name}.weight", shape))
            expected.append(Expected(f"{prefix}{name}.bias", shape[:1], is_optional=True))
    return expected


@dataclass(frozen=True, slots=True)
class Layer:
    """The weights of one layer."""

    attn_norm: F32
    q: Projection
    k: Projection
    v: Projection
    output: Projection
    ffn_norm: F32
    gate: Projection
    up: Projection
    down: Projection

    @classmethod
    def of(cls, weights: Weights, prefix: str) -> "Layer":
        return cls(
            attn_norm=weights.vector(prefix + "attn_norm.weight"),
            q=Projection.of(weights, prefix + "attn_q"),
            k=Projection.of(weights, prefix + "attn_k"),
            v=Projection.of(weights, prefix + "attn_v"),
            output=Projection.of(weights, prefix + "attn_output"),
            ffn_norm=weights.vector(prefix + "ffn_norm.weight"),
            gate=Projection.of(weights, prefix + "ffn_gate"),
            up=Projection.of(weights, prefix + "ffn_up"),
            down=Projection.of(weights, prefix + "ffn_down"),
        )


@dataclass(frozen=True, slots=True)
class Workspace:
    """The arrays of a step of T tokens.

    hidden   (T, H)          the residual stream
    normed   (T, H)          input of q, k, v; then of gate, up
    q, k, v  (T, heads * D)
    mixed    (T, heads * D)  what attention gives; mixed_heads is the same, (T, heads, D)
    branch   (T, H)          what half a layer adds to hidden
    gate     (T, ffn)        silu(gate) * up, too
    up       (T, ffn)
    """

    hidden: F32
    normed: Rows
    q: Heads
    k: Heads
    v: Heads
    mixed: Rows
    mixed_heads: F32
    branch: F32
    gate: Rows
    up: F32

    @classmethod
    def allocate(cls, config: ModelConfig, num_tokens: int) -> "Workspace":
        heads, kv_heads, dim = config.num_heads, config.num_kv_heads, config.head_dim
        mixed = Rows.allocate(num_tokens, heads * dim)
        return cls(
            hidden=np.zeros((num_tokens, config.hidden), np.float32),
            normed=Rows.allocate(num_tokens, config.hidden),
            q=Heads.allocate(num_tokens, heads, dim),
            k=Heads.allocate(num_tokens, kv_heads, dim),
            v=Heads.allocate(num_tokens, kv_heads, dim),
            mixed=mixed,
            mixed_heads=mixed.values.reshape(num_tokens, heads, dim),
            branch=np.zeros((num_tokens, config.hidden), np.float32),
            gate=Rows.allocate(num_tokens, config.ffn),
            up=np.zeros((num_tokens, config.ffn), np.float32),
        )

    def first(self, num_tokens: int) -> "Workspace":
        """The same arrays for a smaller step."""
        return Workspace(
            hidden=self.hidden[:num_tokens],
            normed=self.normed.first(num_tokens),
            q=self.q.first(num_tokens),
            k=self.k.first(num_tokens),
            v=self.v.first(num_tokens),
            mixed=self.mixed.first(num_tokens),
            mixed_heads=self.mixed_heads[:num_tokens],
            branch=self.branch[:num_tokens],
            gate=self.gate.first(num_tokens),
            up=self.up[:num_tokens],
        )


class Llama:
    """A Model of workers.model.build; its arrays are overwritten by the next step."""

    def __init__(
        self, weights: Weights, ops: Ops, *, max_step_tokens: int, max_logit_rows: int
    ) -> None:
        config = self.config = weights.config
        self._ops = ops
        self._embedding = weights.matrix(EMBEDDING)
        self._layers = [Layer.of(weights, f"blk.{i}.") for i in range(config.num_layers)]
        self._norm = weights.vector("output_norm.weight")
        is_tied = not weights.has(f"{HEAD}.weight")
        self._head = Projection(self._embedding, None) if is_tied else Projection.of(weights, HEAD)
        self._rope = _rope_table(weights)
        self._scale = 1.0 / sqrt(config.head_dim)
        self._whole = self._workspace = Workspace.allocate(config, max_step_tokens)
        self._last = Rows.allocate(max_logit_rows, config.hidden)
        self._logits = np.zeros((max_logit_rows, config.vocab_size), np.float32)

    def forward(self, step: Step, kv: KvArena, after_layer: Callable[[], None]) -> F32:
        """The wanted logits (R, V), valid until the next call."""
        space = self._workspace_of(step.token_ids.size)
        self._ops.embed(space.hidden, self._embedding, step.token_ids)
        for index, layer in enumerate(self._layers):
            self._attention(layer, index, space, step, kv)
            self._feed_forward(layer, space)
            after_layer()
        return self._head_logits(space.hidden, step.logit_rows)

    def _workspace_of(self, num_tokens: int) -> Workspace:
        """Views for this step, kept for the next: decode steps are often of one size."""
        assert 0 < num_tokens <= len(self._whole.hidden), (num_tokens, len(self._whole.hidden))
        if len(self._workspace.hidden) != num_tokens:
            self._workspace = self._whole.first(num_tokens)
        return self._workspace

    def _attention(
        self, layer: Layer, index: int, space: Workspace, step: Step, kv: KvArena
    ) -> None:
        ops, q, k, v = self._ops, space.q, space.k, space.v
        ops.rms_norm(space.normed.values, space.hidden, layer.attn_norm, self.config.rms_eps)
        space.normed.quantize(ops)
        layer.q.apply(ops, q.flat, space.normed)
        layer.k.apply(ops, k.flat, space.normed)
        layer.v.apply(ops, v.flat, space.normed)
        ops.rope(q.split, step.positions, self._rope)
        ops.rope(k.split, step.positions, self._rope)
        ops.store_kv(kv, index, k.split, v.split, step.slot_mapping)
        ops.attention(space.mixed_heads, q.split, kv, index, step, self._scale)
        space.mixed.quantize(ops)
        layer.output.apply(ops, space.branch, space.mixed)
        ops.add(space.hidden, space.branch)

    def _feed_forward(self, layer: Layer, space: Workspace) -> None:
        ops, gate = self._ops, space.gate
        ops.rms_norm(space.normed.values, space.hidden, layer.ffn_norm, self.config.rms_eps)
        space.normed.quantize(ops)
        layer.gate.apply(ops, gate.values, space.normed)
        layer.up.apply(ops, space.up, space.normed)
        ops.silu_mul(gate.values, gate.values, space.up)
        gate.quantize(ops)
        layer.down.apply(ops, space.branch, gate)
        ops.add(space.hidden, space.branch)

    def _head_logits(self, hidden: F32, logit_rows: I32) -> F32:
        num_rows = logit_rows.size
        logits = self._logits[:num_rows]
        if num_rows:
            last = self._last.first(num_rows)
            np.take(hidden, logit_rows, axis=0, out=last.values)
            self._ops.rms_norm(last.values, last.values, self._norm, self.config.rms_eps)
            last.quantize(self._ops)
            self._head.apply(self._ops, logits, last)
        return logits


def _rope_table(weights: Weights) -> RopeTable:
    """Pairs of neighbours; each frequency divided by Llama 3's own factor, or all by one."""
    config = weights.config
    factors = None
    if weights.has(ROPE_FACTORS):
        factors = weights.vector(ROPE_FACTORS)
    elif config.rope_factor != 1.0:
        factors = np.full(config.rope_dims // 2, config.rope_factor, np.float32)
    return rope_table(
        config.rope_theta, config.rope_dims, config.context_length, factors, adjacent=True
    )
