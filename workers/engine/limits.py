"""How much one engine may take: sequences, tokens of a step, milliseconds of a step, KV blocks."""

import os
from dataclasses import dataclass
from math import prod
from typing import Final

from kernels.ops import BLOCK_TOKENS, kv_shape
from workers.model.config import ModelConfig
from workers.settings import Settings

KV_SHARE: Final = 8  # an eighth of the machine's RAM, when nothing is said


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Fixed at start; the model's workspace is sized from them.

    max_batch        sequences that run at once, <= max_step_tokens
    max_step_tokens  tokens of one step at most
    step_budget_ms   a prefill chunk is sized so that a step takes about this long
    num_blocks       KV blocks of the arena
    chunk            prefill tokens of a step, always; None: sized from step_budget_ms
    """

    max_batch: int
    max_step_tokens: int
    step_budget_ms: int
    num_blocks: int
    chunk: int | None = None


def limits_of(settings: Settings, config: ModelConfig) -> EngineLimits:
    """What settings and machine allow for this model: at most KV for max_batch full contexts."""
    kv_bytes = settings.kv_mib << 20 or machine_bytes() // KV_SHARE
    useful = settings.max_batch * blocks_for(config.context_length)
    return EngineLimits(
        max_batch=settings.max_batch,
        max_step_tokens=max(settings.max_step_tokens, settings.max_batch),
        step_budget_ms=settings.step_budget_ms,
        num_blocks=max(1, min(kv_bytes // block_bytes(config), useful)),
    )


def blocks_for(num_tokens: int) -> int:
    """Blocks that hold so many token positions."""
    return -(-num_tokens // BLOCK_TOKENS)


def block_bytes(config: ModelConfig) -> int:
    """Size of one KV block, all layers, float16."""
    return prod(kv_shape(1, config.num_layers, config.num_kv_heads, config.head_dim)) * 2


def machine_bytes() -> int:
    """RAM of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
