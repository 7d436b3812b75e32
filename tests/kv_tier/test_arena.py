"""The arena reserves addresses, not memory."""

import re
from pathlib import Path

import numpy as np
import pytest

from kv_tier.arena import Arena, ArenaRefused


def resident_kib() -> int:
    return int(re.search(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text())[1])


def test_the_shape_is_as_given_and_zero():
    arena = Arena((3, 2, 2, 1, 4, 8), np.float16)
    assert arena.blocks.shape == (3, 2, 2, 1, 4, 8)
    assert arena.blocks.dtype == np.float16
    assert arena.block_bytes == 2 * 2 * 1 * 4 * 8 * 2
    assert not arena.blocks.any()


def test_blocks_lie_one_after_the_other():
    arena = Arena((3, 4, 8), np.float32)
    assert arena.blocks.flags.c_contiguous
    assert arena.blocks[1].ctypes.data - arena.blocks[0].ctypes.data == arena.block_bytes


def test_a_big_arena_is_not_resident_until_it_is_written():
    before = resident_kib()
    arena = Arena((64, 8 << 20), np.float16)  # 1 GiB
    assert resident_kib() - before < 64 << 10
    arena.blocks[0] = 1
    assert resident_kib() - before >= 15 << 10


def test_released_memory_reads_as_zeros():
    arena = Arena((4, 1 << 20), np.float16)
    arena.blocks[:] = 1
    before = resident_kib()
    arena.release()
    assert before - resident_kib() >= 7 << 10
    assert not arena.blocks.any()


def test_more_than_the_address_space_is_refused_with_the_size():
    with pytest.raises(ArenaRefused, match="MiB for KV and state"):
        Arena((1 << 40, 1 << 20), np.float16)
