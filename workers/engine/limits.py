"""How much one engine may take: sequences, tokens and milliseconds of a step, blocks, state slots.

KV and recurrent state share one budget. A slot is wanted by each running sequence and, where there
is room, for its checkpoint, so the state gets what two slots for each of max_batch need, but not
more than half of the budget: the rest is KV.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

from kernels.ops import BLOCK_TOKENS, kv_shape
from workers.cgroup import memory_limit
from workers.model.config import ModelConfig
from workers.settings import Settings

KV_SHARE: Final = 8  # an eighth of the machine's RAM, when nothing is said
STATE_SHARE: Final = 2  # at most half of that is recurrent state
SLOTS_OF_ONE: Final = 2  # of a running sequence: its state, and its checkpoint


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Fixed at start; the model's workspace is sized from them.

    max_batch        sequences that run at once, <= max_step_tokens
    max_step_tokens  tokens of one step at most
    step_budget_ms   a prefill chunk is sized so that a step takes about this long
    num_blocks       KV blocks of the arena
    chunk            prefill tokens of a step, always; None: sized from step_budget_ms
    num_state_slots  of a model with recurrent layers; None: two for each of max_batch
    """

    max_batch: int
    max_step_tokens: int
    step_budget_ms: int
    num_blocks: int
    chunk: int | None = None
    num_state_slots: int | None = None

    @property
    def state_slots(self) -> int:
        return self.num_state_slots or SLOTS_OF_ONE * self.max_batch


def limits_of(settings: Settings, config: ModelConfig, budget: int | None = None) -> EngineLimits:
    """What settings and machine allow for this model: at most KV for max_batch full contexts.

    budget  bytes for KV and state; None: of this machine's RAM
    """
    budget = budget or settings.kv_mib << 20 or machine_bytes() // KV_SHARE
    slots = state_slots_of(config, settings.max_batch, budget)
    kv_bytes = budget - slots * state_bytes(config)
    useful = settings.max_batch * blocks_for(config.context_length)
    return EngineLimits(
        max_batch=settings.max_batch,
        max_step_tokens=max(settings.max_step_tokens, settings.max_batch),
        step_budget_ms=settings.step_budget_ms,
        num_blocks=max(1, min(kv_bytes // block_bytes(config), useful)),
        num_state_slots=slots or None,
    )


def state_slots_of(config: ModelConfig, max_batch: int, budget: int) -> int:
    """Slots for the recurrent state, one at least; 0 when the model has none."""
    if config.state is None:
        return 0
    affordable = budget // STATE_SHARE // state_bytes(config)
    return max(1, min(SLOTS_OF_ONE * max_batch, affordable))


def state_bytes(config: ModelConfig) -> int:
    """Size of one sequence's recurrent state, float32."""
    shape = config.state
    return 0 if shape is None else 4 * (prod(shape.conv(1)) + prod(shape.delta(1)))


def blocks_for(num_tokens: int) -> int:
    """Blocks that hold so many token positions."""
    return -(-num_tokens // BLOCK_TOKENS)


def block_bytes(config: ModelConfig) -> int:
    """Size of one KV block, all layers that keep KV, float16."""
    return prod(kv_shape_of(config, 1)) * 2


def kv_shape_of(config: ModelConfig, num_blocks: int) -> Sequence[int]:
    """Shape of KvArena.blocks for this model."""
    return kv_shape(num_blocks, config.num_kv_layers, config.num_kv_heads, config.head_dim)


def machine_bytes() -> int:
    """RAM that we may have of this machine."""
    ram = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(ram, memory_limit() or ram)
