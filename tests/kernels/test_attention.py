"""attention and store_kv: tokens against the paged float16 keys and values of their sequences."""

from functools import cache

import numpy as np
import pytest

from kernels.ops import BLOCK_TOKENS, KvArena
from tests.kernels.cases import Conversation, close, same_bits

SHAPES = [  # lengths, heads, kv heads, head dim
    ([1], 1, 1, 8), ([70, 3], 9, 3, 64), ([64, 65, 300], 4, 2, 32), ([130], 6, 1, 256),
    ([90], 34, 2, 72), ([40], 2, 2, 512),
]  # fmt: skip


@cache
def seen(side, lengths, shape, rows=None, window=0):
    """What these tokens (absent: all) of a conversation see, and its memory: once for all sides.

    lengths, rows are tuples; shape is heads, kv heads, head dim
    """
    talk = Conversation(list(lengths), *shape)
    rows = np.array(range(sum(lengths)) if rows is None else rows)
    kv = talk.stored(side)
    return talk, kv, rows, talk.attend(side, kv, rows, window)


@pytest.mark.parametrize(("lengths", "heads", "kv_heads", "head_dim"), SHAPES)
def test_attention_agrees_with_the_judge(ops, judge, tolerance, lengths, heads, kv_heads, head_dim):
    talk, kv, rows, out = seen(judge, tuple(lengths), (heads, kv_heads, head_dim))
    close(out, talk.attend(ops, kv, rows), tolerance["attention"])


@pytest.mark.parametrize(("lengths", "heads", "kv_heads", "head_dim"), SHAPES)
def test_attention_has_the_bits_of_the_law(ops, scalar, lengths, heads, kv_heads, head_dim):
    talk, kv, rows, out = seen(scalar, tuple(lengths), (heads, kv_heads, head_dim))
    same_bits(out, talk.attend(ops, kv, rows))


def test_a_token_does_not_see_later_ones(ops):
    talk = Conversation([200], 3, 1, 16)
    kv, rows = talk.stored(ops), np.arange(100)
    before = talk.attend(ops, kv, rows)
    late = talk.step(np.arange(100, 200)).slot_mapping
    kv.blocks[late // BLOCK_TOKENS, :, :, :, late % BLOCK_TOKENS] = np.nan
    same_bits(before, talk.attend(ops, kv, rows))


WINDOWS = (1, 5, 63, 64, 65, 100, 256, 300)  # 300: all there is


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(4, 2, 32), (34, 2, 72), (4, 1, 256)])
def test_a_window_agrees_with_judge_and_law(
    ops, judge, scalar, tolerance, window, heads, kv_heads, head_dim
):
    rows = (0, 1, 4, 62, 63, 64, 65, 127, 128, 200, *range(255, 300), 300, 301, 369)
    wanted = (300, 70), (heads, kv_heads, head_dim), rows, window
    talk, kv, rows, law = seen(scalar, *wanted)
    close(seen(judge, *wanted)[-1], law, tolerance["attention"])
    same_bits(law, talk.attend(ops, kv, rows, window))


@pytest.mark.parametrize("window", (0, 700))
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(6, 1, 64), (9, 3, 24), (2, 2, 256)])
def test_keys_shared_out_over_threads_have_the_bits_of_the_law(
    ops, scalar, window, heads, kv_heads, head_dim
):
    for some in ((1099,), (1099, 1102), (1098, 1099, 1102, 1103 + 576), (1103 + 511,)):
        wanted = (1100, 3, 577), (heads, kv_heads, head_dim), some, window
        talk, kv, rows, law = seen(scalar, *wanted)
        same_bits(law, talk.attend(ops, kv, rows, window))


def test_a_nan_among_keys_shared_out_spoils_its_own_head_only(ops, scalar):
    talk = Conversation([900], 2, 2, 64)
    kv, rows = talk.stored(scalar), np.array([899])
    kv.blocks[talk.block_tables[0, 1], 1, 0, 1, 40] = np.nan  # a key of the second head
    out = talk.attend(ops, kv, rows)
    assert np.isnan(out[:, 1]).all()
    same_bits(talk.attend(scalar, kv, rows)[:, :1], out[:, :1])


def test_a_token_does_not_see_what_lies_before_its_window(ops):
    talk = Conversation([300], 3, 1, 16)
    kv, rows = talk.stored(ops), np.arange(190, 300)
    before = talk.attend(ops, kv, rows, 91)
    early = talk.step(np.arange(100)).slot_mapping  # the first row sees 100..190
    kv.blocks[early // BLOCK_TOKENS, :, :, :, early % BLOCK_TOKENS] = np.nan
    same_bits(before, talk.attend(ops, kv, rows, 91))


def test_a_window_over_everything_is_no_window(ops):
    talk = Conversation([70], 2, 1, 16)
    kv, rows = talk.stored(ops), np.arange(70)
    same_bits(talk.attend(ops, kv, rows), talk.attend(ops, kv, rows, 70))


def test_large_scores_do_not_overflow(ops, judge, tolerance):
    talk = Conversation([150], 2, 1, 32)
    talk.q *= 200
    kv, rows = talk.stored(judge), np.arange(150)
    close(talk.attend(judge, kv, rows), talk.attend(ops, kv, rows), (1e-3, 1e-4))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_query_that_is_not_finite_spoils_its_own_row_only(ops, bad):
    talk = Conversation([100], 4, 2, 32)
    kv, rows = talk.stored(ops), np.arange(100)
    clean = talk.attend(ops, kv, rows)
    talk.q[50, 2, 7] = bad
    spoiled = talk.attend(ops, kv, rows)
    assert np.isnan(spoiled[50, 2]).all()
    spoiled[50, 2] = clean[50, 2]
    same_bits(clean, spoiled)


def test_a_key_that_is_nan_spoils_its_own_sequence_only(ops):
    talk = Conversation([100, 100], 2, 1, 32)
    rows = np.arange(200)
    clean = talk.attend(ops, talk.stored(ops), rows)
    talk.k[30, 0, 0] = np.nan
    spoiled = talk.attend(ops, talk.stored(ops), rows)
    same_bits(clean[:30], spoiled[:30])
    assert np.isnan(spoiled[30:100]).all()
    same_bits(clean[100:], spoiled[100:])


def test_store_kv_writes_every_float16_alike(ops, scalar):
    """All magnitudes, ties between two float16, subnormals, infinities, NaN."""
    half = np.arange(0, 0x7C00, 7, dtype=np.uint16).view(np.float16).astype(np.float32)
    middle = (half[:-1] + half[1:]) / 2
    x = np.concatenate([half, middle, np.nextafter(middle, np.float32(0)), [65519, 65520, 1e30]])
    x = np.concatenate([x, -x, [np.inf, -np.inf, np.nan]]).astype(np.float32)
    x = np.resize(x, (-(-x.size // 16), 2, 8))
    slots = np.random.default_rng(0).permutation(8 * BLOCK_TOKENS * 10)[: x.shape[0]]
    arenas = []
    for side in (ops, scalar):
        kv = KvArena(np.zeros((80, 2, 2, 2, BLOCK_TOKENS, 8), np.float16))
        side.store_kv(kv, 1, x, -x, slots)
        arenas.append(kv.blocks)
    same_bits(arenas[1], arenas[0])


def test_store_kv_saturates_and_touches_nothing_else(ops):
    kv = KvArena(np.zeros((2, 2, 2, 1, BLOCK_TOKENS, 8), np.float16))
    k = np.full((1, 1, 8), 1e9, np.float32)
    ops.store_kv(kv, 1, k, -k, np.array([BLOCK_TOKENS + 3], np.int64))
    assert (kv.blocks[1, 1, 0, 0, 3] == 65504).all() and (kv.blocks[1, 1, 1, 0, 3] == -65504).all()
    assert np.count_nonzero(kv.blocks) == 16
