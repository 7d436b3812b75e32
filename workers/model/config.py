"""The sizes and constants of one model, as its graph needs them; read from a GGUF's metadata once.

Also BadModel, the one error of this folder: a file or a folder that cannot be served, and why.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

MAX_CONTEXT: Final = 1 << 22  # the RoPE table has a row for each position


class BadModel(ValueError):
    """The model cannot be used; the message is one sentence that names what is wrong."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One decoder.

    hidden       width of the residual stream
    ffn          width inside the feed-forward part
    vocab_size   rows of the embedding, padding rows included
    rope_dims    dimensions of a head that turn
    rope_factor  linear scaling: positions are divided by it; 1.0 is none
    """

    architecture: str
    num_layers: int
    hidden: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn: int
    vocab_size: int
    context_length: int
    rms_eps: float
    rope_theta: float
    rope_dims: int
    rope_factor: float = 1.0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "ModelConfig":
        return cls(**values)


def read_config(fields: Mapping[str, Any], vocab_size: int) -> ModelConfig:
    """The configuration of a decoder with plain attention.

    fields  the GGUF's metadata by key

    Raises BadModel that names the key.
    """
    keys = _Keys(fields)
    num_heads, hidden = keys.count("attention.head_count"), keys.count("embedding_length")
    head_dim = keys.count("attention.key_length", hidden // num_heads)
    config = ModelConfig(
        architecture=keys.architecture,
        num_layers=keys.count("block_count"),
        hidden=hidden,
        num_heads=num_heads,
        num_kv_heads=keys.count("attention.head_count_kv", num_heads),
        head_dim=head_dim,
        ffn=keys.count("feed_forward_length"),
        vocab_size=vocab_size,
        context_length=keys.count("context_length"),
        rms_eps=keys.positive("attention.layer_norm_rms_epsilon"),
        rope_theta=keys.positive("rope.freq_base", 10000.0),
        rope_dims=keys.count("rope.dimension_count", head_dim),
        rope_factor=_rope_factor(keys),
    )
    keys.refuse_unless(
        config.num_heads % config.num_kv_heads == 0, "attention.head_count_kv", "divide the heads"
    )
    value_dim = keys.count("attention.value_length", head_dim)
    keys.refuse_unless(value_dim == head_dim, "attention.value_length", "equal key_length")
    is_short = config.context_length <= MAX_CONTEXT
    keys.refuse_unless(is_short, "context_length", f"be at most {MAX_CONTEXT}")
    keys.refuse_unless(head_dim % 8 == 0, "attention.key_length", "be a multiple of 8")
    is_even = config.rope_dims % 2 == 0 and config.rope_dims <= head_dim
    keys.refuse_unless(is_even, "rope.dimension_count", "be even and within a head")
    keys.refuse_unless(config.rope_theta > 1, "rope.freq_base", "be above 1")
    keys.refuse_unless(not keys.value("expert_count", 0), "expert_count", "be absent: no experts")
    return config


class _Keys:
    """Reads keys that begin with the architecture's name."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self.fields = fields
        self.architecture = str(fields.get("general.architecture", ""))

    def value(self, key: str, default: Any = None) -> Any:
        return self.fields.get(f"{self.architecture}.{key}", default)

    def count(self, key: str, default: int | None = None) -> int:
        value = self.value(key, default)
        is_count = isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**31
        self.refuse_unless(is_count, key, "be a whole number above 0")
        return int(value)

    def positive(self, key: str, default: float | None = None) -> float:
        value = self.value(key, default)
        is_positive = isinstance(value, (int, float)) and 0 < value < float("inf")
        self.refuse_unless(is_positive, key, "be a number above 0")
        return float(value)

    def refuse_unless(self, is_right: bool, key: str, must: str) -> None:
        if not is_right:
            name = f"{self.architecture}.{key}"
            raise BadModel(f"{name} must {must}, but it is {self.fields.get(name)!r}")


def _rope_factor(keys: _Keys) -> float:
    """Linear scaling; Llama 3's own comes as the tensor rope_freqs.weight."""
    kind = keys.value("rope.scaling.type", "none")
    keys.refuse_unless(kind in ("none", "linear"), "rope.scaling.type", "be none or linear")
    return keys.positive("rope.scaling.factor", 1.0) if kind == "linear" else 1.0
