"""The arena reserves addresses, not memory; files are mapped into it and never written to."""

import mmap
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kv_tier.arena import Arena, ArenaRefused, MapRefused


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


PAGE = mmap.PAGESIZE


@pytest.fixture
def file(tmp_path):
    """A header of a page, then two pages of sevens."""
    path = tmp_path / "block"
    path.write_bytes(bytes(PAGE) + b"\x07" * 2 * PAGE)
    return path


def map_into(arena: Arena, block_id: int, path: Path, offset: int = PAGE) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        arena.map_file(block_id, fd, offset)
    finally:
        os.close(fd)


def paged_arena() -> Arena:
    """Four blocks of two pages, each full of its number + 1."""
    arena = Arena((4, 2 * PAGE), np.uint8)
    arena.blocks[:] = np.arange(1, 5, dtype=np.uint8)[:, None]
    return arena


def test_a_mapped_block_is_the_files_bytes_and_its_neighbours_are_not(file):
    arena = paged_arena()
    map_into(arena, 1, file)
    assert [set(block.tolist()) for block in arena.blocks] == [{1}, {7}, {3}, {4}]
    assert arena.is_mapped(1) and not arena.is_mapped(2) and arena.num_mapped == 1
    arena.blocks[0] = arena.blocks[2] = 9
    assert set(arena.blocks[1].tolist()) == {7}


def brought_in(path: Path) -> np.ndarray:
    """Another mapping of the file's two pages of sevens."""
    fd = os.open(path, os.O_RDONLY)
    mapping = mmap.mmap(fd, 2 * PAGE, mmap.MAP_SHARED, mmap.PROT_READ, offset=PAGE)
    os.close(fd)
    pages = np.frombuffer(mapping, np.uint8)
    assert set(pages.tolist()) == {7}
    return pages


def test_pages_that_were_brought_in_are_moved_and_both_mappings_live_apart(file):
    arena, pages = paged_arena(), brought_in(file)
    fd = os.open(file, os.O_RDONLY)
    arena.map_file(1, fd, PAGE, address=pages.ctypes.data)
    os.close(fd)
    assert [set(block.tolist()) for block in arena.blocks] == [{1}, {7}, {3}, {4}]
    assert set(pages.tolist()) == {7}
    del pages
    assert set(arena.blocks[1].tolist()) == {7}
    arena.unmap(1)
    arena.blocks[1] = 9
    assert file.read_bytes()[PAGE:] == b"\x07" * 2 * PAGE


def test_pages_that_cannot_be_moved_are_mapped_anew(file):
    """As by a system that does not know how: here nothing can lie at the address."""
    arena, fd = paged_arena(), os.open(file, os.O_RDONLY)
    arena.map_file(1, fd, PAGE, address=PAGE)
    os.close(fd)
    assert [set(block.tolist()) for block in arena.blocks] == [{1}, {7}, {3}, {4}]


def test_an_unmapped_block_is_zeros_and_writable(file):
    arena = paged_arena()
    map_into(arena, 1, file)
    arena.unmap(1)
    assert not arena.blocks[1].any() and arena.num_mapped == 0
    arena.blocks[1] = 9
    assert file.read_bytes()[PAGE:] == b"\x07" * 2 * PAGE
    assert [block[0] for block in arena.blocks] == [1, 9, 3, 4]


def test_another_file_may_be_mapped_over_the_first(file, tmp_path):
    arena = paged_arena()
    map_into(arena, 1, file)
    (tmp_path / "other").write_bytes(b"\x08" * 2 * PAGE)
    map_into(arena, 1, tmp_path / "other", 0)
    assert set(arena.blocks[1].tolist()) == {8} and arena.num_mapped == 1


def test_a_file_that_is_too_short_is_refused_before_anybody_reads_behind_its_end(file):
    os.truncate(file, 3 * PAGE - 1)
    arena = paged_arena()
    with pytest.raises(MapRefused, match="lacks 1 bytes"):
        map_into(arena, 1, file)
    assert not arena.is_mapped(1)
    arena.blocks[1] = 5


def test_what_cannot_be_mapped_leaves_memory_of_our_own(tmp_path):
    """A file that is open for writing alone cannot be mapped to be read."""
    path = tmp_path / "block"
    path.write_bytes(b"\x07" * 2 * PAGE)
    arena, fd = paged_arena(), os.open(path, os.O_WRONLY)
    with pytest.raises(MapRefused, match="ermission"):
        arena.map_file(1, fd, 0)
    os.close(fd)
    arena.blocks[1] = 5
    assert [block[0] for block in arena.blocks] == [1, 5, 3, 4]


def test_blocks_that_are_no_whole_pages_cannot_be_mapped(file):
    arena = Arena((4, PAGE + 2), np.uint8)
    assert not arena.can_map
    with pytest.raises(AssertionError):
        map_into(arena, 1, file)


def test_discarding_gives_back_these_blocks_alone(file):
    arena = paged_arena()
    map_into(arena, 3, file)
    arena.discard([3, 0, 1])
    assert [block[0] for block in arena.blocks] == [0, 0, 3, 0]
    assert arena.num_mapped == 0
    arena.blocks[:] = 6


def test_discarding_blocks_that_share_a_page_leaves_the_others():
    arena = Arena((4, PAGE // 2), np.uint8)
    arena.blocks[:] = 3
    arena.discard([0, 2, 3])
    assert set(arena.blocks[1].tolist()) == {3}
    assert not arena.blocks[2:].any()


def test_discarded_memory_is_not_resident():
    arena = Arena((8, 4 << 20), np.uint8)
    arena.blocks[:] = 1
    before = resident_kib()
    arena.discard([1, 2, 3, 6])
    assert before - resident_kib() >= 15 << 10


def test_releasing_unmaps_files_too(file):
    arena = paged_arena()
    map_into(arena, 2, file)
    arena.release()
    assert not arena.blocks.any()
    arena.blocks[:] = 1


STRAY = """
import os, sys
import numpy as np
from kv_tier.arena import Arena
arena = Arena((4, 8192), np.uint8)
arena.map_file(1, os.open(sys.argv[1], os.O_RDWR), 4096)
arena.blocks[1, 5] = 99
"""


def test_a_stray_write_ends_the_process_and_never_reaches_the_file(file):
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", STRAY, str(file)], cwd=root, timeout=60)
    assert done.returncode == -signal.SIGSEGV
    assert file.read_bytes()[PAGE:] == b"\x07" * 2 * PAGE


def test_a_mapped_block_outlives_its_name(file):
    arena = paged_arena()
    map_into(arena, 1, file)
    file.unlink()
    assert set(arena.blocks[1].tolist()) == {7}
