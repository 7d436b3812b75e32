"""Writes small llama GGUF files with random weights, right ones and wrong ones."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import GGUFWriter, quants

VOCAB = 48


@dataclass(frozen=True)
class Small:
    """One small model.

    types    tensor name (without prefix and suffix) -> its type in the file; others are `type`
    metadata keys to change, None to leave out; tensors: the same for tensors
    """

    layers: int = 2
    hidden: int = 64
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    ffn: int = 96
    has_biases: bool = False
    is_tied: bool = True
    type: Type = Type.Q8_0
    types: Mapping[str, Type] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 1


def tensors_of(small: Small) -> dict[str, np.ndarray]:
    """Random float32 weights by name, of sizes that keep activations near 1."""
    rng = np.random.default_rng(small.seed)
    q_width, kv_width = small.heads * small.head_dim, small.kv_heads * small.head_dim
    shapes = {"attn_q": (q_width, small.hidden), "attn_k": (kv_width, small.hidden)}
    shapes |= {"attn_v": (kv_width, small.hidden), "attn_output": (small.hidden, q_width)}
    shapes |= {"ffn_gate": (small.ffn, small.hidden), "ffn_up": (small.ffn, small.hidden)}
    shapes |= {"ffn_down": (small.hidden, small.ffn)}
    tensors = {"token_embd.weight": rng.normal(size=(VOCAB, small.hidden))}
    tensors["output_norm.weight"] = rng.uniform(0.5, 1.5, small.hidden)
    if not small.is_tied:
        tensors["output.weight"] = rng.normal(size=(VOCAB, small.hidden))
    for block in range(small.layers):
        for norm in ("attn_norm", "ffn_norm"):
            tensors[f"blk.{block}.{norm}.weight"] = rng.uniform(0.5, 1.5, small.hidden)
        for name, shape in shapes.items():
            values = rng.normal(size=shape) * 2 / np.sqrt(shape[1])
            tensors[f"blk.{block}.{name}.weight"] = values
            if small.has_biases:
                tensors[f"blk.{block}.{name}.bias"] = rng.normal(size=shape[0])
    tensors |= small.tensors
    return {k: np.asarray(v, np.float32) for k, v in tensors.items() if v is not None}


def metadata_of(small: Small) -> dict[str, Any]:
    """The keys of the file. Tokens are single letters, without merges."""
    values = {
        "llama.block_count": small.layers,
        "llama.context_length": 512,
        "llama.embedding_length": small.hidden,
        "llama.feed_forward_length": small.ffn,
        "llama.attention.head_count": small.heads,
        "llama.attention.head_count_kv": small.kv_heads,
        "llama.attention.key_length": small.head_dim,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 10000.0,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": [chr(65 + i) for i in range(VOCAB)],
        "tokenizer.ggml.token_type": [1] * (VOCAB - 1) + [3],
        "tokenizer.ggml.eos_token_id": VOCAB - 1,
    }
    return {k: v for k, v in (values | dict(small.metadata)).items() if v is not None}


def write_gguf(path: Path, small: Small, architecture: str = "llama") -> Path:
    """Write it to path, and give path back."""

    def type_of(name: str) -> Type:
        return small.types.get(_short(name), small.type)

    return write(path, architecture, metadata_of(small), tensors_of(small), type_of)


def write(
    path: Path,
    architecture: str,
    metadata: Mapping[str, Any],
    tensors: Mapping[str, np.ndarray],
    type_of: Callable[[str], Type] = lambda _: Type.F32,
) -> Path:
    """A GGUF of these; vectors are F32, matrices of type_of(name)."""
    writer = GGUFWriter(path, architecture)
    for key, value in metadata.items():
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        else:
            writer.add_int32(key, value)
    for name, values in tensors.items():
        kind = Type.F32 if values.ndim == 1 else type_of(name)
        writer.add_tensor(name, quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _short(name: str) -> str:
    return name.split(".")[-2]
