"""A model's sizes come from its metadata; what this version cannot compute is refused by name."""

import pytest

from tests.workers.model.small_gguf import Small, metadata_of
from workers.model.config import BadModel, ModelConfig, read_config


def config_of(**changes):
    fields = metadata_of(Small(metadata={f"llama.{k}": v for k, v in changes.items()}))
    return read_config({"general.architecture": "llama", **fields}, vocab_size=48)


def test_sizes_are_read():
    assert config_of() == ModelConfig(
        architecture="llama",
        kinds=("full", "full"),
        hidden=64,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        ffn=96,
        vocab_size=48,
        context_length=512,
        rms_eps=1e-5,
        attention_scale=0.25,
        rope_theta=10000.0,
        rope_dims=16,
    )


@pytest.mark.parametrize(
    ("key", "field", "default"),
    [
        ("attention.head_count_kv", "num_kv_heads", 4),
        ("attention.key_length", "head_dim", 16),
        ("rope.freq_base", "rope_theta", 10000.0),
        ("rope.dimension_count", "rope_dims", 16),
        ("rope.scaling.type", "rope_factor", 1.0),
    ],
)
def test_absent_keys_have_the_usual_meaning(key, field, default):
    assert getattr(config_of(**{key: None}), field) == default


def test_linear_scaling_is_a_factor():
    assert (
        config_of(**{"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}).rope_factor == 4.0
    )


def test_json_gives_the_same_configuration():
    assert ModelConfig.from_json(config_of().to_json()) == config_of()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("block_count", None),
        ("block_count", 0),
        ("embedding_length", "64"),
        ("context_length", -1),
        ("attention.head_count", 2**40),
        ("attention.head_count_kv", 3),
        ("attention.head_count_kv", [2, 2]),
        ("attention.key_length", 12),
        ("attention.value_length", 32),
        ("attention.layer_norm_rms_epsilon", None),
        ("attention.layer_norm_rms_epsilon", float("nan")),
        ("rope.freq_base", 0.5),
        ("rope.dimension_count", 15),
        ("rope.dimension_count", 32),
        ("rope.scaling.type", "yarn"),
        ("expert_count", 8),
    ],
)
def test_what_cannot_be_computed_is_refused_by_its_key(key, value):
    with pytest.raises(BadModel, match=f"llama.{key} must"):
        config_of(**{key: value})
