"""Blocks, tails and states as rows of bytes: what of the arenas a file holds, and how it returns.

block   (L, 2, H, 256, D) float16                      as it lies in the arena (LAYOUT.md)
tail    (L, 2, H, n, D) float16                        of each head its first n keys or values
state   conv (layers, taps - 1, C), delta (layers, heads, D_v, D_k) float32, one after the other
"""

from math import prod
from typing import Any

import numpy as np

from kernels.arithmetic import ARITHMETIC_VERSION
from kernels.ops import BLOCK_TOKENS, F16, F32, U8
from kv_tier.chain import fingerprint_of
from kv_tier.objects import Elsewhere
from kv_tier.prefix import Sizes
from workers.engine.limits import block_bytes, kv_shape_of, state_bytes
from workers.model.config import ModelConfig

Parts = tuple[Any | Elsewhere, ...]  # C-contiguous arrays, or where such are


def sizes_of(config: ModelConfig, weights_digest: str) -> Sizes:
    """What an engine with this model keeps; equal on every processor."""
    shapes = [kv_shape_of(config, 1)]
    if config.state is not None:
        shapes += [config.state.conv(1), config.state.delta(1)]
    num_bytes = block_bytes(config)
    return Sizes(
        fingerprint=fingerprint_of(weights_digest, ARITHMETIC_VERSION, *shapes),
        block_bytes=num_bytes,
        token_bytes=num_bytes // BLOCK_TOKENS,
        state_bytes=state_bytes(config),
    )


def tail_parts(block: F16, num_tokens: int) -> tuple[F16, ...]:
    """Views of the first num_tokens of a block, in the order of a tail's payload."""
    heads = block.reshape(-1, *block.shape[-2:])  # a view: a block is contiguous
    return tuple(head[:num_tokens] for head in heads)


def tail_of(payload: U8, block_shape: tuple[int, ...], num_tokens: int) -> F16:
    """(L, 2, H, num_tokens, D): a view of a tail's payload, or a block's."""
    *outer, _, dim = block_shape
    return payload.view(np.float16).reshape(*outer, num_tokens, dim)


def copy_tokens(target: F16, source: F16, num_tokens: int) -> None:
    """The first num_tokens of source become those of the block target."""
    target[..., :num_tokens, :] = source[..., :num_tokens, :]


def state_of(payload: U8, conv: tuple[int, ...], delta: tuple[int, ...]) -> tuple[F32, F32]:
    """Views of a state's payload in these shapes of one slot."""
    values, size = payload.view(np.float32), prod(conv)
    return values[:size].reshape(conv), values[size:].reshape(delta)
