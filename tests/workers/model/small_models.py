"""Writes small GGUF files of every architecture, with random weights.

Widths are no multiples of 32 unless a test says so: then no activation has 8 bits, a graph differs
from the exact one by rounding alone, and no error can hide behind it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType as Type

from tests.workers.model.small_gguf import VOCAB, write

TOKENIZER = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": [chr(65 + i) for i in range(VOCAB)],
    "tokenizer.ggml.token_type": [1] * (VOCAB - 1) + [3],
    "tokenizer.ggml.eos_token_id": VOCAB - 1,
}


@dataclass(frozen=True)
class Sizes:
    """Of one small model; keys: metadata to add or to change, without the architecture's name."""

    layers: int = 4
    hidden: int = 40
    heads: int = 6
    kv_heads: int = 2
    head_dim: int = 8
    ffn: int = 56
    k_heads: int = 3
    v_heads: int = 6
    state_dim: int = 8
    is_tied: bool = True
    keys: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 1


def write_small(
    path: Path,
    architecture: str,
    sizes: Sizes,
    type_of: Callable[[str], Type] = lambda _: Type.F32,
) -> Path:
    """Write one, and give path back."""
    keys = keys_of(architecture, sizes) | dict(sizes.keys)
    metadata = {f"{architecture}.{key}": value for key, value in keys.items()} | TOKENIZER
    rng = np.random.default_rng(sizes.seed)
    tensors = {name: drawn(rng, name, s) for name, s in shapes_of(architecture, sizes).items()}
    return write(path, architecture, metadata, tensors, type_of)


def keys_of(architecture: str, sizes: Sizes) -> dict[str, Any]:
    keys = {
        "block_count": sizes.layers,
        "context_length": 512,
        "embedding_length": sizes.hidden,
        "feed_forward_length": sizes.ffn,
        "attention.head_count": sizes.heads,
        "attention.head_count_kv": sizes.kv_heads,
        "attention.key_length": sizes.head_dim,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": 10000.0,
    }
    if architecture == "gemma3":
        keys |= {"attention.sliding_window": 9, "rope.freq_base_swa": 300.0}
    if architecture == "qwen35":
        keys |= {"rope.dimension_count": sizes.head_dim // 2, "ssm.conv_kernel": 4}
        keys |= {"ssm.state_size": sizes.state_dim, "ssm.group_count": sizes.k_heads}
        keys |= {"ssm.time_step_rank": sizes.v_heads}
        keys |= {"ssm.inner_size": sizes.v_heads * sizes.state_dim}
    return keys


def shapes_of(architecture: str, sizes: Sizes) -> dict[str, tuple[int, ...]]:
    """Of every tensor, by name, as the specification lists them."""
    hidden = sizes.hidden
    shapes = {"token_embd.weight": (VOCAB, hidden), "output_norm.weight": (hidden,)}
    if not sizes.is_tied:
        shapes["output.weight"] = (VOCAB, hidden)
    interval = sizes.keys.get("full_attention_interval", 4)
    for block in range(sizes.layers):
        is_linear = architecture == "qwen35" and (block + 1) % interval != 0
        of_block = delta_shapes(sizes) if is_linear else attention_shapes(architecture, sizes)
        of_block |= {"attn_norm.weight": (hidden,), "ffn_gate.weight": (sizes.ffn, hidden)}
        of_block |= {"ffn_up.weight": (sizes.ffn, hidden), "ffn_down.weight": (hidden, sizes.ffn)}
        norms = {"gemma3": ["post_attention_norm", "ffn_norm", "post_ffw_norm"]}
        norms["qwen35"] = ["post_attention_norm"]
        of_block |= {f"{n}.weight": (hidden,) for n in norms.get(architecture, ["ffn_norm"])}
        shapes |= {f"blk.{block}.{name}": shape for name, shape in of_block.items()}
    return shapes


def attention_shapes(architecture: str, sizes: Sizes) -> dict[str, tuple[int, ...]]:
    q_width, kv_width = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
    q_rows = 2 * q_width if architecture == "qwen35" else q_width
    shapes: dict[str, tuple[int, ...]] = {
        "attn_q.weight": (q_rows, sizes.hidden),
        "attn_k.weight": (kv_width, sizes.hidden),
        "attn_v.weight": (kv_width, sizes.hidden),
        "attn_output.weight": (sizes.hidden, q_width),
    }
    if architecture == "qwen2":
        shapes |= {
            "attn_q.bias": (q_width,),
            "attn_k.bias": (kv_width,),
            "attn_v.bias": (kv_width,),
        }
    if architecture in ("qwen3", "qwen35", "gemma3"):
        shapes |= {f"attn_{x}_norm.weight": (sizes.head_dim,) for x in "qk"}
    return shapes


def delta_shapes(sizes: Sizes) -> dict[str, tuple[int, ...]]:
    width = sizes.v_heads * sizes.state_dim
    channels = 2 * sizes.k_heads * sizes.state_dim + width
    return {
        "attn_qkv.weight": (channels, sizes.hidden),
        "attn_gate.weight": (width, sizes.hidden),
        "ssm_alpha.weight": (sizes.v_heads, sizes.hidden),
        "ssm_beta.weight": (sizes.v_heads, sizes.hidden),
        "ssm_conv1d.weight": (channels, 4),
        "ssm_dt.bias": (sizes.v_heads,),
        "ssm_a": (sizes.v_heads,),
        "ssm_norm.weight": (sizes.state_dim,),
        "ssm_out.weight": (sizes.hidden, width),
    }


def drawn(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Random float32 of a size that keeps activations near 1."""
    if name.endswith("ssm_a"):
        values = -rng.uniform(0.05, 2.0, shape)
    elif name.endswith("norm.weight"):
        values = rng.uniform(0.5, 1.5, shape)
    elif len(shape) == 1 or name.startswith("token_embd"):
        values = rng.normal(size=shape)
    else:
        values = rng.normal(size=shape) * 2 / np.sqrt(shape[1])
    return values.astype(np.float32)
