"""A model's sizes come from its metadata; what this version cannot compute is refused by name."""

import json
import math

import pytest

from tests.workers.model.small_gguf import Small, metadata_of
from tests.workers.model.small_models import Sizes, keys_of
from workers.model.build import architecture_of
from workers.model.config import BadModel, ModelConfig, StateShape, read_config


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


def small_config(architecture, **changes):
    """The configuration of small_models' file with these keys changed; None leaves one out."""
    values = keys_of(architecture, Sizes(layers=8)) | changes
    fields = {f"{architecture}.{k}": v for k, v in values.items() if v is not None}
    fields["general.architecture"] = architecture
    return architecture_of(architecture).config(fields, 48)


@pytest.mark.parametrize("architecture", ["gemma3", "llama", "qwen2", "qwen3", "qwen35"])
def test_every_configuration_comes_back_from_json(architecture):
    config = small_config(architecture)
    text = json.dumps(config.to_json())
    assert ModelConfig.from_json(json.loads(text)) == config
    assert json.loads(text)["num_layers"] == 8


def test_every_fourth_layer_is_full_unless_said_otherwise():
    every_fourth = ("linear", "linear", "linear", "full") * 2
    assert small_config("qwen35").kinds == every_fourth
    assert small_config("qwen35", **{"full_attention_interval": 2}).kinds == ("linear", "full") * 4
    flags = [True] * 7 + [False]
    said = small_config("qwen35", **{"attention.recurrent_layers": flags})
    assert said.kinds == ("linear",) * 7 + ("full",)
    assert (said.num_kv_layers, said.state.num_linear_layers) == (1, 7)


def test_blocks_that_guess_further_are_no_layers():
    config = small_config("qwen35", block_count=9, nextn_predict_layers=1)
    assert (config.num_layers, config.num_mtp_layers) == (8, 1)
    assert config.state == small_config("qwen35").state


def test_a_hybrid_of_full_layers_alone_has_no_state():
    config = small_config("qwen35", **{"attention.recurrent_layers": [False] * 8})
    assert config.state is None and config.num_kv_layers == 8


def test_the_shape_of_the_27b_state():
    config = small_config(
        "qwen35",
        block_count=64,
        **{
            "ssm.state_size": 128,
            "ssm.group_count": 16,
            "ssm.time_step_rank": 48,
            "ssm.inner_size": 6144,
        },
    )
    assert config.state == StateShape(48, 4, 10240, 16, 48, 128, 128)
    assert config.state.delta(2) == (2, 48, 48, 128, 128)
    assert config.state.conv(2) == (2, 48, 3, 10240)


def test_five_of_six_layers_see_a_window():
    config = small_config("gemma3")
    assert config.kinds == ("window",) * 5 + ("full",) + ("window",) * 2
    assert (config.window, config.window_rope_theta) == (9, 300.0)
    assert config.embedding_scale == math.sqrt(40)
    flags = [False] * 7 + [True]
    said = small_config("gemma3", **{"attention.sliding_window_pattern": flags})
    assert said.kinds == ("full",) * 7 + ("window",)


def test_without_a_window_all_layers_see_all_keys():
    config = small_config("gemma3", **{"attention.sliding_window": None})
    assert (config.kinds, config.window) == (("full",) * 8, 0)


def test_the_scale_is_of_the_heads_but_for_gemmas_27b():
    assert small_config("gemma3").attention_scale == 1 / math.sqrt(8)
    large = small_config("gemma3", block_count=62, embedding_length=5376)
    assert large.attention_scale == 1 / math.sqrt(5376 / 6)
    said = small_config("gemma3", block_count=62, **{"attention.scale": 0.5})
    assert said.attention_scale == 0.5


@pytest.mark.parametrize(
    ("architecture", "key", "value"),
    [
        ("qwen35", "ssm.state_size", None),
        ("llama", "context_length", 1 << 26),
        ("llama", "attention.layer_norm_rms_epsilon", 1e300),
        ("qwen35", "ssm.state_size", 12),
        ("qwen35", "ssm.state_size", 264),
        ("qwen35", "ssm.group_count", 4),
        ("qwen35", "ssm.inner_size", 50),
        ("qwen35", "ssm.conv_kernel", 1),
        ("qwen35", "ssm.conv_kernel", 9),
        ("qwen35", "nextn_predict_layers", 8),
        ("qwen35", "nextn_predict_layers", -1),
        ("qwen35", "attention.recurrent_layers", [True] * 7),
        ("qwen35", "attention.recurrent_layers", ["yes"] * 8),
        ("qwen35", "full_attention_interval", 100),
        ("qwen35", "full_attention_interval", 0),
        ("gemma3", "final_logit_softcapping", 30.0),
        ("gemma3", "attention.sliding_window", -5),
        ("gemma3", "attention.sliding_window_pattern", [True]),
        ("gemma3", "attention.sliding_window_pattern", "every"),
        ("gemma3", "rope.freq_base_swa", 1.0),
        ("qwen3", "block_count", 1025),
        ("qwen3", "attention.key_length", 520),
        ("qwen3", "attention.value_length", 16),
    ],
)
def test_what_an_architecture_cannot_compute_is_refused_by_its_key(architecture, key, value):
    with pytest.raises(BadModel, match=f"{architecture}.{key} must"):
        small_config(architecture, **{key: value})
