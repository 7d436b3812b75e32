"""gemma3: most layers see a window of the last tokens only, and each half is normed at both ends.

    h = embedding * sqrt(hidden)
    each layer:   h += norm( attention( norm(h) ) )
                  h += norm( down( gelu(gate(x)) * up(x) ) ),   x = norm(h)

Of six layers, five see the window and turn by a base of their own; the sixth sees all keys, and its
positions may be scaled. Each head of q and k is normed before it turns. The head is tied.

Source: transformers' modeling_gemma3.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import sqrt
from typing import Any, Final

from kernels.ops import GELU
from kernels.tables import GrowingRope
from workers.model.attention import Attention, attention_tensors, full_rope
from workers.model.config import FULL, WINDOW, Keys, ModelConfig, read_config
from workers.model.decoder import Half, Layer, decoder_tensors
from workers.model.feed_forward import FeedForward, feed_forward_tensors
from workers.model.gguf_file import Expected
from workers.model.layers import norm_tensor
from workers.model.pack import Weights

NORMS: Final = ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
LAYERS_OF_27B: Final = 62  # the one size whose scale is not that of its heads


def gemma3_config(fields: Mapping[str, Any], vocab_size: int) -> ModelConfig:
    """Raises BadModel that names the key."""
    config, keys = read_config(fields, vocab_size), Keys(fields)
    cap = "final_logit_softcapping"
    keys.refuse_unless(not keys.value(cap), cap, "be absent: it is not computed here")
    scale = config.attention_scale
    if config.num_layers == LAYERS_OF_27B:
        scale = keys.positive("attention.scale", 1.0 / sqrt(config.hidden / config.num_heads))
    window = keys.value("attention.sliding_window") and keys.count("attention.sliding_window")
    theta = keys.positive("rope.freq_base_swa", 10000.0)
    keys.refuse_unless(theta > 1, "rope.freq_base_swa", "be above 1")
    return replace(
        config,
        kinds=_kinds(keys, config.num_layers) if window else config.kinds,
        attention_scale=scale,
        window=window or 0,
        window_rope_theta=theta,
        embedding_scale=sqrt(config.hidden),
    )


def _kinds(keys: Keys, num_layers: int) -> tuple[str, ...]:
    """Every so-maniest layer sees all keys; or a flag for each says whether it sees a window."""
    key = "attention.sliding_window_pattern"
    if isinstance(keys.value(key), list):
        is_local = keys.flags(key, num_layers) or []
    else:
        period = keys.count(key, 6)
        is_local = [index % period < period - 1 for index in range(num_layers)]
    return tuple(WINDOW if local else FULL for local in is_local)


def gemma3_tensors(config: ModelConfig) -> list[Expected]:
    """What a gemma3 GGUF holds."""

    def of_layer(prefix: str) -> list[Expected]:
        return [
            *(norm_tensor(prefix + name, config.hidden) for name in NORMS),
            *attention_tensors(config, prefix, has_head_norms=True),
            *feed_forward_tensors(config, prefix),
        ]

    return decoder_tensors(config, of_layer)


def gemma3_layers(weights: Weights) -> list[Layer]:
    config = weights.config
    ropes = {FULL: full_rope(weights, adjacent=False)}
    if WINDOW in config.kinds:
        theta, arrays = config.window_rope_theta, weights.arrays
        ropes[WINDOW] = GrowingRope(
            theta, config.rope_dims, config.context_length, None, adjacent=False, arrays=arrays
        )
    layers = []
    for index, kind in enumerate(config.kinds):
        prefix = f"blk.{index}."
        norms = [weights.vector(f"{prefix}{name}.weight") for name in NORMS]
        window = config.window if kind == WINDOW else 0
        attention = Attention.of(weights, prefix, ropes[kind], index, window)
        feed_forward = FeedForward.of(weights, prefix, GELU)
        layers.append((Half(norms[0], attention, norms[1]), Half(norms[2], feed_forward, norms[3])))
    return layers
