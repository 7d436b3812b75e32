"""KV and recurrent state share one budget."""

from dataclasses import replace
from pathlib import Path

import pytest

from workers.engine.limits import block_bytes, limits_of, state_bytes
from workers.model.config import ModelConfig, StateShape
from workers.settings import Settings

MIB = 1 << 20
LLAMA = ModelConfig(
    architecture="llama",
    kinds=("full",) * 16,
    hidden=1024,
    num_heads=8,
    num_kv_heads=4,
    head_dim=256,
    ffn=2048,
    vocab_size=1000,
    context_length=262144,
    rms_eps=1e-6,
    attention_scale=1 / 16,
    rope_theta=1e7,
    rope_dims=64,
)
KINDS = ("linear", "linear", "linear", "full") * 16
QWEN_27B = replace(LLAMA, kinds=KINDS, state=StateShape(48, 4, 10240, 16, 48, 128, 128))


def settings_of(kv_mib: int, max_batch: int = 16) -> Settings:
    return Settings(kv_mib=kv_mib, max_batch=max_batch, home=Path("var"))


def test_sizes_of_the_27b_model():
    assert state_bytes(QWEN_27B) == 156_893_184
    assert block_bytes(QWEN_27B) == 256 * 65_536 == block_bytes(LLAMA)


def test_a_model_without_state_has_all_its_budget_for_kv():
    limits = limits_of(settings_of(1600), LLAMA)
    assert (limits.num_blocks, limits.num_state_slots) == (100, None)


@pytest.mark.parametrize(
    ("kv_mib", "max_batch", "slots"), [(3072, 16, 10), (3072, 2, 4), (64, 4, 1)]
)
def test_state_takes_two_slots_a_sequence_but_at_most_half(kv_mib, max_batch, slots):
    limits = limits_of(settings_of(kv_mib, max_batch), QWEN_27B)
    left = kv_mib * MIB - slots * state_bytes(QWEN_27B)
    assert limits.num_state_slots == slots
    assert limits.num_blocks == max(1, left // block_bytes(QWEN_27B))
