"""The sizes and constants of one model, as its graph needs them; read from a GGUF's metadata once.

Also BadModel, the one error of this folder: a file or a folder that cannot be served, and why.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import sqrt
from typing import Any, Final

from kernels.ops import conv_shape, delta_shape

MAX_CONTEXT: Final = 1 << 22  # the RoPE table has a row for each position
MAX_TABLE_BYTES: Final = 512 << 20
MAX_LAYERS: Final = 1024
MAX_HEAD_DIM: Final = 512  # of the kernels' attention
MAX_TAPS: Final = 8  # of their convolution
MAX_KEY_DIM: Final = 256  # of their delta rule
FULL, WINDOW, LINEAR = "full", "window", "linear"  # what a layer mixes tokens with


class BadModel(ValueError):
    """The model cannot be used; the message is one sentence that names what is wrong."""


@dataclass(frozen=True, slots=True)
class StateShape:
    """What the linear layers of one sequence remember, whatever its length.

    taps      of the convolution: it remembers taps - 1 tokens
    channels  of the convolution: q, k and v of all heads
    """

    num_linear_layers: int
    taps: int
    channels: int
    num_k_heads: int
    num_v_heads: int
    key_dim: int
    value_dim: int

    def conv(self, num_slots: int) -> Sequence[int]:
        """Shape of StateArena.conv."""
        return conv_shape(num_slots, self.num_linear_layers, self.taps, self.channels)

    def delta(self, num_slots: int) -> Sequence[int]:
        """Shape of StateArena.delta."""
        dims = (self.num_v_heads, self.value_dim, self.key_dim)
        return delta_shape(num_slots, self.num_linear_layers, *dims)


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One decoder.

    kinds              of each layer: "full" attention, attention to a "window" of the last tokens,
                       or "linear": a recurrent state in place of KV
    hidden             width of the residual stream
    ffn                width inside the feed-forward part
    vocab_size         rows of the embedding, padding rows included
    attention_scale    what q . k is multiplied with
    rope_dims          dimensions of a head that turn
    rope_factor        linear scaling: positions are divided by it; 1.0 is none
    window             keys that a "window" layer sees, the token's own included
    window_rope_theta  these layers turn by a base of their own, never scaled
    num_mtp_layers     blocks behind the last layer that guess further tokens; kept, not used
    has_attention_gate q's projection gives each head a gate, too
    embedding_scale    what embeddings are multiplied with
    state              of the "linear" layers; None when there are none
    """

    architecture: str
    kinds: tuple[str, ...]
    hidden: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn: int
    vocab_size: int
    context_length: int
    rms_eps: float
    attention_scale: float
    rope_theta: float
    rope_dims: int
    rope_factor: float = 1.0
    window: int = 0
    window_rope_theta: float = 0.0
    num_mtp_layers: int = 0
    has_attention_gate: bool = False
    embedding_scale: float = 1.0
    state: StateShape | None = None

    @property
    def num_layers(self) -> int:
        return len(self.kinds)

    @property
    def num_kv_layers(self) -> int:
        """Layers that keep KV: the KV arena has no others."""
        return len(self.kinds) - self.kinds.count(LINEAR)

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"num_layers": self.num_layers}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "ModelConfig":
        """The inverse of to_json."""
        fields = {k: v for k, v in values.items() if k != "num_layers"}
        fields["kinds"] = tuple(fields["kinds"])
        if fields["state"] is not None:
            fields["state"] = StateShape(**fields["state"])
        return cls(**fields)


def read_config(fields: Mapping[str, Any], vocab_size: int) -> ModelConfig:
    """The configuration of a decoder with full attention in every layer.

    fields  the GGUF's metadata by key

    Raises BadModel that names the key.
    """
    keys = Keys(fields)
    num_heads, hidden = keys.count("attention.head_count"), keys.count("embedding_length")
    head_dim = keys.count("attention.key_length", max(1, hidden // num_heads))
    num_layers = keys.count("block_count")
    keys.refuse_unless(num_layers <= MAX_LAYERS, "block_count", f"be at most {MAX_LAYERS}")
    config = ModelConfig(
        architecture=keys.architecture,
        kinds=(FULL,) * num_layers,
        hidden=hidden,
        num_heads=num_heads,
        num_kv_heads=keys.count("attention.head_count_kv", num_heads),
        head_dim=head_dim,
        ffn=keys.count("feed_forward_length"),
        vocab_size=vocab_size,
        context_length=keys.count("context_length"),
        rms_eps=keys.positive("attention.layer_norm_rms_epsilon"),
        attention_scale=keys.positive("attention.scale", 1.0 / sqrt(head_dim)),
        rope_theta=keys.positive("rope.freq_base", 10000.0),
        rope_dims=keys.count("rope.dimension_count", head_dim),
        rope_factor=_rope_factor(keys),
    )
    _refuse_what_is_not_computed(keys, config)
    return config


def _refuse_what_is_not_computed(keys: "Keys", config: ModelConfig) -> None:
    """Raises BadModel that names the key."""
    heads, dim, turned = config.num_heads, config.head_dim, config.rope_dims
    value_dim = keys.count("attention.value_length", dim)
    table_bytes = config.context_length * turned * 4
    for is_right, key, must in (
        (heads % config.num_kv_heads == 0, "attention.head_count_kv", "divide the heads"),
        (value_dim == dim, "attention.value_length", "equal key_length"),
        (config.context_length <= MAX_CONTEXT, "context_length", f"be at most {MAX_CONTEXT}"),
        (table_bytes <= MAX_TABLE_BYTES, "context_length", "need a RoPE table of at most 512 MiB"),
        (dim % 8 == 0 and dim <= MAX_HEAD_DIM, "attention.key_length",
         f"be a multiple of 8, at most {MAX_HEAD_DIM}"),
        (turned % 2 == 0 and turned <= dim, "rope.dimension_count", "be even and within a head"),
        (config.rope_theta > 1, "rope.freq_base", "be above 1"),
        (not keys.value("expert_count", 0), "expert_count", "be absent: no experts"),
    ):  # fmt: skip
        keys.refuse_unless(is_right, key, must)


class Keys:
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
        is_positive = isinstance(value, (int, float)) and 1e-37 < value < 1e37
        self.refuse_unless(is_positive, key, "be a number above 0 that float32 holds")
        return float(value)

    def flags(self, key: str, num_layers: int) -> list[bool] | None:
        """One bool for each block; None when the key is absent."""
        value = self.value(key)
        if value is None:
            return None
        is_list = isinstance(value, list) and len(value) == num_layers
        is_flags = is_list and all(isinstance(flag, (bool, int)) for flag in value)
        self.refuse_unless(is_flags, key, f"be a list of {num_layers} flags")
        return [bool(flag) for flag in value]

    def refuse_unless(self, is_right: bool, key: str, must: str) -> None:
        if not is_right:
            name = f"{self.architecture}.{key}"
            raise BadModel(f"{name} must {must}, but it is {self.fields.get(name)!r}")


def _rope_factor(keys: Keys) -> float:
    """Linear scaling; Llama 3's own comes as the tensor rope_freqs.weight."""
    kind = keys.value("rope.scaling.type", "none")
    keys.refuse_unless(kind in ("none", "linear"), "rope.scaling.type", "be none or linear")
    return keys.positive("rope.scaling.factor", 1.0) if kind == "linear" else 1.0
