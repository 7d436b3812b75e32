"""qwen35 (3.5 and 3.6): three gated delta nets to one layer of gated full attention.

A delta net keeps a state S of fixed size in place of KV, per head of v, and forgets and corrects it
with each token. Of a layer's normed input x:

    q, k, v = silu( convolution over the last tokens of qkv(x) )     each channel on its own
    q, k    = each head / its length;  q / sqrt(D_k)
    decay   = exp( A softplus(alpha(x) + dt) )    beta = sigmoid(beta(x))
    S       = decay S;   S += k ( beta (v - S k) )^T;   o = S q      v's head j reads k's j mod nk
    out     = output( norm(o) * silu(z(x)) )                         a norm of each head

What is kept between steps is S and the last inputs of the convolution: workers.model.config's
StateShape. Blocks behind the last layer guess further tokens (MTP): kept in the pack, not used.

Source: transformers' modeling_qwen3_5; Yang et al. 2024, arXiv:2412.06464.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import sqrt
from typing import Any

from kernels.ops import F32, Ops
from workers.model.attention import Attention, attention_tensors, full_rope
from workers.model.config import (
    FULL,
    LINEAR,
    MAX_KEY_DIM,
    MAX_TAPS,
    Keys,
    ModelConfig,
    StateShape,
    read_config,
)
from workers.model.decoder import Half, Layer, decoder_tensors
from workers.model.feed_forward import FeedForward, feed_forward_tensors
from workers.model.gguf_file import Expected
from workers.model.layers import Projections, norm_tensor, projection_tensors
from workers.model.pack import Weights
from workers.model.workspace import Frame

INPUTS = ("attn_qkv", "attn_gate", "ssm_alpha", "ssm_beta")  # all read the layer's input
L2_EPS = 1e-6  # added to the sum of squares of a head of q or k


def qwen35_config(fields: Mapping[str, Any], vocab_size: int) -> ModelConfig:
    """Raises BadModel that names the key."""
    config, keys = read_config(fields, vocab_size), Keys(fields)
    num_blocks, num_mtp = config.num_layers, keys.value("nextn_predict_layers", 0)
    is_count = isinstance(num_mtp, int) and 0 <= num_mtp < num_blocks
    keys.refuse_unless(is_count, "nextn_predict_layers", f"be below the {num_blocks} blocks")
    kinds = _kinds(keys, num_blocks)[: num_blocks - num_mtp]
    what = "full_attention_interval"
    keys.refuse_unless(FULL in kinds, what, "leave a layer of full attention")
    num_linear = kinds.count(LINEAR)
    return replace(
        config,
        kinds=kinds,
        num_mtp_layers=num_mtp,
        has_attention_gate=True,
        state=_state(keys, num_linear) if num_linear else None,
    )


def _kinds(keys: Keys, num_blocks: int) -> tuple[str, ...]:
    """A flag for each block says whether it is linear; else every so-maniest is not."""
    is_linear = keys.flags("attention.recurrent_layers", num_blocks)
    if is_linear is None:
        interval = keys.count("full_attention_interval", 4)
        is_linear = [(index + 1) % interval != 0 for index in range(num_blocks)]
    return tuple(LINEAR if linear else FULL for linear in is_linear)


def _state(keys: Keys, num_linear: int) -> StateShape:
    dim, heads = keys.count("ssm.state_size"), keys.count("ssm.time_step_rank")
    k_heads, taps = keys.count("ssm.group_count"), keys.count("ssm.conv_kernel")
    inner = keys.count("ssm.inner_size")
    is_fit = dim % 8 == 0 and dim <= MAX_KEY_DIM
    keys.refuse_unless(is_fit, "ssm.state_size", f"be a multiple of 8, at most {MAX_KEY_DIM}")
    keys.refuse_unless(heads % k_heads == 0, "ssm.group_count", f"divide the {heads} heads of v")
    keys.refuse_unless(inner == heads * dim, "ssm.inner_size", f"be {heads} heads of {dim}")
    keys.refuse_unless(2 <= taps <= MAX_TAPS, "ssm.conv_kernel", f"be from 2 to {MAX_TAPS}")
    channels = 2 * k_heads * dim + inner
    return StateShape(num_linear, taps, channels, k_heads, heads, dim, dim)


def qwen35_tensors(config: ModelConfig) -> list[Expected]:
    """What a qwen35 GGUF holds."""
    expected = decoder_tensors(config, lambda prefix: _layer_tensors(config, prefix))
    for index in range(config.num_mtp_layers):
        expected += _mtp_tensors(config, f"blk.{config.num_layers + index}.")
    return expected


def _layer_tensors(config: ModelConfig, prefix: str) -> list[Expected]:
    index = int(prefix.split(".")[1])
    mixer = _full_tensors if config.kinds[index] == FULL else delta_tensors
    return mixer(config, prefix) + _shared_tensors(config, prefix)


def _full_tensors(config: ModelConfig, prefix: str) -> list[Expected]:
    return attention_tensors(config, prefix, has_head_norms=True)


def _shared_tensors(config: ModelConfig, prefix: str) -> list[Expected]:
    norms = [prefix + "attn_norm", prefix + "post_attention_norm"]
    return [
        *(norm_tensor(name, config.hidden) for name in norms),
        *feed_forward_tensors(config, prefix),
    ]


def _mtp_tensors(config: ModelConfig, prefix: str) -> list[Expected]:
    """A block of full attention with its own ways in and out; nobody misses one that lacks."""
    hidden, table = config.hidden, (config.vocab_size, config.hidden)
    norms = ("enorm", "hnorm", "shared_head_norm")
    found = [
        *_full_tensors(config, prefix),
        *_shared_tensors(config, prefix),
        *projection_tensors(prefix + "nextn.eh_proj", hidden, 2 * hidden),
        *(norm_tensor(f"{prefix}nextn.{name}", hidden) for name in norms),
        Expected(f"{prefix}nextn.embed_tokens.weight", table),
        Expected(f"{prefix}nextn.shared_head_head.weight", table),
    ]
    return [replace(tensor, is_optional=True) for tensor in found]


def delta_tensors(config: ModelConfig, prefix: str) -> list[Expected]:
    """What a DeltaNet reads."""
    shape, hidden = config.state, config.hidden
    assert shape is not None
    heads, width = shape.num_v_heads, shape.num_v_heads * shape.value_dim
    return [
        *projection_tensors(prefix + "attn_qkv", shape.channels, hidden),
        *projection_tensors(prefix + "attn_gate", width, hidden),
        *projection_tensors(prefix + "ssm_alpha", heads, hidden),
        *projection_tensors(prefix + "ssm_beta", heads, hidden),
        *projection_tensors(prefix + "ssm_out", hidden, width),
        Expected(prefix + "ssm_conv1d.weight", (shape.channels, shape.taps)),
        Expected(prefix + "ssm_dt.bias", (heads,)),
        Expected(prefix + "ssm_a", (heads,)),
        norm_tensor(prefix + "ssm_norm", shape.value_dim),
    ]


@dataclass(frozen=True, slots=True)
class DeltaNet:
    """The weights of one linear layer.

    inputs of qkv, z (the gate), alpha and beta
    conv   (channels, taps) float32, the last tap multiplies the current token
    a      (nv,)            below 0: already -exp(A_log)
    dt     (nv,)
    norm   (D_v,)           of each head of v
    layer  its place in the state: layers without one are not counted
    """

    inputs: Projections
    output: Projections
    conv: F32
    a: F32
    dt: F32
    norm: F32
    rms_eps: float
    layer: int

    @classmethod
    def of(cls, weights: Weights, prefix: str, layer: int) -> "DeltaNet":
        return cls(
            inputs=Projections.of(weights, *(prefix + name for name in INPUTS)),
            output=Projections.of(weights, prefix + "ssm_out"),
            conv=weights.arrays.constant(weights.values(prefix + "ssm_conv1d.weight")),
            a=weights.vector(prefix + "ssm_a"),
            dt=weights.vector(prefix + "ssm_dt.bias"),
            norm=weights.vector(prefix + "ssm_norm.weight"),
            rms_eps=weights.config.rms_eps,
            layer=layer,
        )

    def apply(self, ops: Ops, frame: Frame) -> None:
        """A Branch of workers.model.decoder."""
        space, x, state = frame.space.delta, frame.space.normed, frame.state
        assert space is not None and state is not None
        self.inputs.apply(ops, (space.raw, space.z, space.a, space.b), x)
        ops.conv1d(space.convolved, space.raw, state, self.layer, self.conv, frame.step)
        ops.l2_norm(space.q, space.q_part, L2_EPS, 1.0 / sqrt(space.q.shape[2]))
        ops.l2_norm(space.k, space.k_part, L2_EPS, 1.0)
        ops.delta_gates(space.decay, space.beta, space.a, space.b, self.a, self.dt)
        ops.gated_delta_rule(
            space.mixed_heads.split, space.q, space.k, space.v,
            space.decay, space.beta, state, self.layer, frame.step,
        )  # fmt: skip
        heads, mixed = space.mixed_heads.single, space.mixed
        ops.rms_norm(heads, heads, self.norm, self.rms_eps)
        ops.silu_mul(mixed.values, space.z, mixed.values)
        mixed.quantize(ops)
        self.output.apply(ops, (frame.space.branch,), mixed)


def qwen35_layers(weights: Weights) -> list[Layer]:
    config = weights.config
    rope = full_rope(weights, adjacent=False)
    layers: list[Layer] = []
    for index, kind in enumerate(config.kinds):
        prefix, before = f"blk.{index}.", config.kinds[:index].count(kind)
        norms = [f"{prefix}{name}.weight" for name in ("attn_norm", "post_attention_norm")]
        if kind == FULL:
            first = Half(weights.vector(norms[0]), Attention.of(weights, prefix, rope, before))
        else:
            first = Half(weights.vector(norms[0]), DeltaNet.of(weights, prefix, before))
        second = Half(weights.vector(norms[1]), FeedForward.of(weights, prefix))
        layers.append((first, second))
    return layers
