"""The arrays that a step works in, and what a step works with.

token ids ─embed─► hidden ──norm──► normed ──(attention | delta net | feed-forward)──► branch
                      ▲                                                                  │
                      └──────────────────────────── + ───────────────────────────────────┘
"""

from dataclasses import dataclass

import numpy as np

from kernels.arrays import Arrays
from kernels.ops import F32, KvArena, StateArena, Step
from workers.model.config import ModelConfig, StateShape
from workers.model.layers import Heads, Rows, first_tokens


@dataclass(frozen=True, slots=True)
class AttentionSpace:
    """Of an attention layer, H heads of D dimensions.

    q, k, v      (T, heads, D)
    q_and_gate   (T, H, 2 D)    what a gated q projection gives: each head's query, then its gate;
                                None where attention has no gate
    mixed        (T, H * D)     what attention gives; mixed_heads is the same, by head
    """

    q: Heads
    k: Heads
    v: Heads
    q_and_gate: Heads | None
    mixed: Rows
    mixed_heads: Heads

    @classmethod
    def allocate(cls, config: ModelConfig, num_tokens: int, arrays: Arrays) -> "AttentionSpace":
        heads, kv_heads, dim = config.num_heads, config.num_kv_heads, config.head_dim
        mixed = Rows.allocate(num_tokens, heads * dim, arrays)
        is_gated = config.has_attention_gate
        return cls(
            q=Heads.allocate(num_tokens, heads, dim, arrays),
            k=Heads.allocate(num_tokens, kv_heads, dim, arrays),
            v=Heads.allocate(num_tokens, kv_heads, dim, arrays),
            q_and_gate=Heads.allocate(num_tokens, heads, 2 * dim, arrays) if is_gated else None,
            mixed=mixed,
            mixed_heads=Heads.of(mixed.values, dim),
        )

    def first(self, num_tokens: int) -> "AttentionSpace":
        return first_tokens(self, num_tokens)


@dataclass(frozen=True, slots=True)
class FeedForwardSpace:
    """gate, up (T, ffn); gate holds activation(gate) * up, too."""

    gate: Rows
    up: F32

    @classmethod
    def allocate(cls, config: ModelConfig, num_tokens: int, arrays: Arrays) -> "FeedForwardSpace":
        up = arrays.reserve((num_tokens, config.ffn), np.float32)
        return cls(Rows.allocate(num_tokens, config.ffn, arrays), up)

    def first(self, num_tokens: int) -> "FeedForwardSpace":
        return first_tokens(self, num_tokens)


@dataclass(frozen=True, slots=True)
class DeltaSpace:
    """Of a linear layer, nk heads of q and k, nv of v.

    raw, convolved  (T, channels)    q, k and v of all heads, before and after the convolution
    q_part, k_part  (T, nk, D_k)     columns of convolved, and so is v
    v               (T, nv, D_v)
    q, k            (T, nk, D_k)     each head normed: k to length 1, q to 1 / sqrt(D_k)
    z               (T, nv * D_v)    gates what the heads give
    a, b            (T, nv)          from which decay and beta are made
    decay, beta     (T, nv)
    mixed           (T, nv * D_v)    what the heads give; mixed_heads is the same, by head
    """

    raw: F32
    convolved: F32
    q_part: F32
    k_part: F32
    v: F32
    q: F32
    k: F32
    z: F32
    a: F32
    b: F32
    decay: F32
    beta: F32
    mixed: Rows
    mixed_heads: Heads

    @classmethod
    def allocate(cls, shape: StateShape, num_tokens: int, arrays: Arrays) -> "DeltaSpace":
        def rows(cols: int) -> F32:
            return arrays.reserve((num_tokens, cols), np.float32)

        heads, width = shape.num_v_heads, shape.num_v_heads * shape.value_dim
        keys = (num_tokens, shape.num_k_heads, shape.key_dim)
        k_begin, v_begin = keys[1] * keys[2], 2 * keys[1] * keys[2]
        convolved, mixed = rows(shape.channels), Rows.allocate(num_tokens, width, arrays)
        return cls(
            raw=rows(shape.channels),
            convolved=convolved,
            q_part=convolved[:, :k_begin].reshape(keys),
            k_part=convolved[:, k_begin:v_begin].reshape(keys),
            v=convolved[:, v_begin:].reshape(num_tokens, heads, shape.value_dim),
            q=arrays.reserve(keys, np.float32),
            k=arrays.reserve(keys, np.float32),
            z=rows(width),
            a=rows(heads),
            b=rows(heads),
            decay=rows(heads),
            beta=rows(heads),
            mixed=mixed,
            mixed_heads=Heads.of(mixed.values, shape.value_dim),
        )

    def first(self, num_tokens: int) -> "DeltaSpace":
        return first_tokens(self, num_tokens)


@dataclass(frozen=True, slots=True)
class Workspace:
    """The arrays of a step of T tokens.

    hidden   (T, H)   the residual stream
    normed   (T, H)   what half a layer reads
    branch   (T, H)   what half a layer adds to hidden
    delta    None where no layer is linear
    """

    hidden: F32
    normed: Rows
    branch: F32
    attention: AttentionSpace
    feed_forward: FeedForwardSpace
    delta: DeltaSpace | None

    @classmethod
    def allocate(cls, config: ModelConfig, num_tokens: int, arrays: Arrays) -> "Workspace":
        shape, hidden = config.state, (num_tokens, config.hidden)
        return cls(
            hidden=arrays.reserve(hidden, np.float32),
            normed=Rows.allocate(num_tokens, config.hidden, arrays),
            branch=arrays.reserve(hidden, np.float32),
            attention=AttentionSpace.allocate(config, num_tokens, arrays),
            feed_forward=FeedForwardSpace.allocate(config, num_tokens, arrays),
            delta=None if shape is None else DeltaSpace.allocate(shape, num_tokens, arrays),
        )

    def first(self, num_tokens: int) -> "Workspace":
        return first_tokens(self, num_tokens)


@dataclass(frozen=True, slots=True)
class Frame:
    """One step on its way through the layers: its tokens, their memory, the arrays to work in.

    num_positions  of the longest sequence, with its tokens of this step
    """

    step: Step
    kv: KvArena
    state: StateArena | None
    space: Workspace
    num_positions: int
