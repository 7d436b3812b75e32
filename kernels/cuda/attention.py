"""Attention on the GPU: which tokens go together, and the launches that take them.

Neighbouring tokens of one sequence share their keys (attention_prefill.cu); single ones are cut
into stripes that wait in scratch memory to be merged in key order (attention.cu).
"""

from typing import Final

import numpy as np

from kernels.cuda.checks import check_positions, checked, is_inside
from kernels.cuda.geometry import (
    ALL_KEYS,
    MAX_HEAD_DIM,
    AttentionShape,
    most_stripes,
    prefill_tokens,
    regions_of,
    stripes_bytes,
    up,
)
from kernels.cuda.launch import Array, Kernels, Long
from kernels.ops import BLOCK_TOKENS, F32, I64, KvArena, Step

SCRATCH_BYTES: Final = 64 << 20  # stripes that wait to be merged


def store_kv(kernels: Kernels, kv: KvArena, layer: int, k: F32, v: F32, slot_mapping: I64) -> None:
    num_blocks, _, _, kv_heads, _, head_dim = kv.blocks.shape
    shape = (slot_mapping.size, kv_heads, head_dim)
    checked(k, np.float32, shape)
    checked(v, np.float32, shape)
    checked(slot_mapping, np.int64)
    is_inside(slot_mapping, 0, num_blocks * BLOCK_TOKENS)
    assert k.size, "there are no tokens"
    assert head_dim % 8 == 0, head_dim
    sizes = (Long(k.size), *_strides(kv), kv_heads, head_dim)
    kernels.each("store_kv", k.size, _layer_of(kv, layer), k, v, slot_mapping, *sizes)


class Attention:
    """One call of the op: its arrays, checked."""

    def __init__(
        self, kernels: Kernels, out: F32, q: F32, kv: KvArena, layer: int, step: Step,
        scale: float, window: int,
    ) -> None:  # fmt: skip
        num_tokens, heads, head_dim = q.shape
        kv_heads, kv_dim = kv.blocks.shape[3], kv.blocks.shape[5]
        assert kv_dim == head_dim and heads % kv_heads == 0, (q.shape, kv.blocks.shape)
        assert head_dim % 8 == 0 and head_dim <= MAX_HEAD_DIM and window >= 0, (head_dim, window)
        checked(q, np.float32)
        checked(out, np.float32, q.shape, is_written=True)
        assert not np.may_share_memory(out, q), "attention: out overlaps q"
        check_positions(step, num_tokens, kv.blocks.shape[0])
        self.shape = AttentionShape(heads, kv_heads, head_dim, window or ALL_KEYS)
        self._kernels, self._out, self._step, self._scale = kernels, out, step, float(scale)
        of_step = (step.positions, step.seq_index, step.block_tables)
        self._arrays = (q, _layer_of(kv, layer), *of_step)
        self._strides = _strides(kv)

    def run(self) -> None:
        step = self._step
        for begin, end, is_long in regions_of(step.seq_index, step.positions, self.shape):
            if is_long:
                self._together(begin, end)
            else:
                self._alone(begin, end)

    def _together(self, begin: int, end: int) -> None:
        """Tokens [begin, end), some neighbours a block."""
        shape, tokens = self.shape, prefill_tokens(self.shape)
        sizes = (shape.heads, shape.kv_heads, self._step.block_tables.shape[1], begin, end, tokens)
        self._kernels.run(
            f"attention_prefill_{shape.head_dim}", (up(end - begin, tokens), shape.kv_heads), 128,
            self._out, *self._arrays, *self._strides, *sizes, shape.window, self._scale,
            shared=shape.prefill_bytes,
        )  # fmt: skip

    def _alone(self, begin: int, end: int) -> None:
        """Tokens [begin, end), a block for each stripe; as many at once as scratch memory takes."""
        shape, step = self.shape, self._step
        slots = most_stripes(int(step.positions[begin:end].max()) + 1, shape)
        of_token = stripes_bytes(slots, shape)
        at_once = max(1, SCRATCH_BYTES // of_token)
        sizes = (shape.heads, shape.kv_heads, shape.head_dim, step.block_tables.shape[1])
        for token in range(begin, end, at_once):
            count = min(end - token, at_once)
            partial, tail = self._kernels.scratch(count * of_token), (token, shape.window, slots)
            self._kernels.run(
                "attention_stripes", (slots, shape.kv_heads, count), 128, partial, *self._arrays,
                *self._strides, *sizes, *tail, self._scale, shared=shape.decode_bytes,
            )  # fmt: skip
            self._kernels.run(
                "attention_merge", (shape.heads, count), 128, self._out, partial, step.positions,
                shape.heads, shape.head_dim, *tail,
            )  # fmt: skip


def _layer_of(kv: KvArena, layer: int) -> Array:
    """K of block 0; the kernels count from there."""
    checked(kv.blocks, np.float16, is_written=True)
    assert 0 <= layer < kv.blocks.shape[1], (layer, kv.blocks.shape)
    of_layer: Array = kv.blocks[0, layer]
    return of_layer


def _strides(kv: KvArena) -> tuple[Long, Long]:
    """Numbers from one block to the next, and from a layer's K to its V."""
    _, num_layers, _, kv_heads, tokens, head_dim = kv.blocks.shape
    one = kv_heads * tokens * head_dim
    return Long(2 * num_layers * one), Long(one)
