"""Sizes at which the GPU's kernels go another way: each has the bits of the CPU, in every order.

The tests of the ops beside this folder run on the emulated kernels too; here stand the sizes that
only a GPU's launch geometry tells apart.
"""

import os

import numpy as np
import pytest

from kernels.cpu.host import CpuOps
from kernels.cuda.emulate.host import ORDERS, emulated_ops
from kernels.cuda.geometry import (
    ALL_KEYS,
    AttentionShape,
    matmul_launch,
    prefill_tokens,
    regions_of,
)
from tests.kernels.cases import (
    QUANTISED,
    Conversation,
    product,
    random_matrix,
    random_rows,
    same_bits,
)
from tests.kernels.state_cases import Recurrence

CPU = CpuOps(1)
GPU = {order: emulated_ops(order) for order in ORDERS}
DEVICE = ("device",) if os.environ.get("LOCKSTEP_TEST_GPU") else ()  # make test-gpu
orders = pytest.mark.parametrize("order", (*ORDERS, *DEVICE))


@pytest.fixture(scope="module", autouse=True)
def device(request):
    """With make test-gpu, the device is one more side."""
    if DEVICE:
        GPU["device"] = request.getfixturevalue("gpu_ops")


@orders
@pytest.mark.parametrize("kind", QUANTISED)
@pytest.mark.parametrize(
    ("num_tokens", "rows", "cols"),
    [
        (1, 20, 8192 + 320),  # two passes of matmul_few, the second one short
        (3, 33, 2080),
        (5, 17, 2304),  # nine stripes: two rounds of matmul_some
        (16, 40, 96),
        (17, 33, 544),
        (64, 16, 256),
        (65, 150, 544),  # matmul_many: rows and tokens beyond one tile, three stripes
        (130, 129, 96),
    ],
)
def test_a_product_of_every_kernel(order, kind, num_tokens, rows, cols):
    w, x = random_matrix(kind, rows, cols), random_rows(num_tokens, cols)
    same_bits(product(CPU, x, w), product(GPU[order], x, w))


@pytest.mark.parametrize("kind", QUANTISED)
def test_a_product_of_two_tiles_a_block(kind):
    """Only wide matrices take this way; the last block has one tile left."""
    rows = 16 * 512 + 5
    assert matmul_launch(kind, 6, rows).kernel == f"matmul_{kind}_some_2"
    w, x = random_matrix(kind, rows, 64), random_rows(6, 64)
    same_bits(product(CPU, x, w), product(GPU["forward"], x, w))


def test_the_number_of_tokens_decides_the_kernel():
    names = [matmul_launch("q4_0", n, 4096).kernel for n in (1, 4, 5, 31, 64, 65)]
    kinds = ["few_1", "few_4", "some_1", "some_2", "some_2", "many"]
    assert names == [f"matmul_q4_0_{kind}" for kind in kinds]


@orders
def test_a_float_product_of_more_stripes_than_one_pass(order):
    w, x = random_matrix("f32", 18, 4096 + 300), random_rows(5, 4096 + 300)
    same_bits(product(CPU, x, w), product(GPU[order], x, w))


@orders
@pytest.mark.parametrize("cols", [1024, 1056, 8192 + 100])
def test_a_norm_of_wide_rows(order, cols):
    """From 1024 on a row has a block of its own, and from 8192 on it comes in pieces."""
    x, weight = random_rows(3, cols), random_rows(1, cols)[0]
    outs = []
    for ops in (CPU, GPU[order]):
        out = np.empty_like(x)
        ops.rms_norm(out, x, weight, 1e-6)
        again = x.copy()
        ops.rms_norm(again, again, weight, 1e-6)
        same_bits(out, again)
        outs.append(out)
    same_bits(*outs)


@orders
@pytest.mark.parametrize("window", [0, 70])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim"), [(4, 2, 64), (3, 1, 128), (6, 1, 256), (2, 2, 256)]
)
def test_attention_of_a_prompt_among_decodes(order, window, heads, kv_heads, head_dim):
    """Pieces of two prompts, three single tokens, and memory that was never written."""
    talk = Conversation([90, 100, 30, 20], heads, kv_heads, head_dim)
    kv = talk.stored(CPU)
    rows = np.array([*range(33, 75), 150, *range(190, 205), *range(210, 218), 237])
    same_bits(talk.attend(CPU, kv, rows, window), talk.attend(GPU[order], kv, rows, window))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("head_dim", [64, 128, 256, 40])
def test_a_value_that_is_not_finite_spoils_only_who_sees_it(bad, head_dim):
    """Token 20 of 32 has a bad value: the tokens before it keep their bits."""
    talk = Conversation([32], 2, 1, head_dim)
    rows, ops = np.arange(32), GPU["forward"]
    clean = talk.attend(ops, talk.stored(ops), rows)
    talk.v[20, 0, 3] = bad
    spoiled = talk.attend(ops, talk.stored(ops), rows)
    same_bits(clean[:20], spoiled[:20])
    same_bits(talk.attend(CPU, talk.stored(CPU), rows), spoiled)


def test_a_long_conversation_is_merged_stripe_by_stripe():
    talk = Conversation([700], 4, 2, 64)
    kv = talk.stored(CPU)
    for rows in (np.array([699]), np.arange(660, 700)):
        same_bits(talk.attend(CPU, kv, rows), talk.attend(GPU["forward"], kv, rows))


def test_tokens_go_together_where_they_follow_one_another():
    shape = AttentionShape(8, 2, 128, ALL_KEYS)
    seq_index = np.repeat(np.arange(4), [1, 2, 20, 9]).astype(np.int32)
    positions = np.concatenate([[7], [3, 4], range(20), [0, 1, 2, 3, 5, 6, 7, 8, 9]])
    regions = regions_of(seq_index, positions.astype(np.int32), shape)
    assert regions == [(0, 3, False), (3, 23, True), (23, 32, False)]
    assert prefill_tokens(shape) == 16


@orders
@pytest.mark.parametrize("lengths", [[100, 3], [1, 31, 40], [33, 64], [25, 7, 70]])
def test_a_convolution_is_cut_into_pieces_of_32_tokens(order, lengths):
    """The first piece alone touches the state, wherever the sequence begins in the step."""
    case = Recurrence(lengths, 2, 1, 16, 24)
    arenas = case.arena(), case.arena()
    parts = [(s, 0, n) for s, n in enumerate(lengths)]
    for half in (0, 1):
        cut = [(s, n // 2 * half, n if half else n // 2) for s, _, n in parts]
        step = [part for part in cut if part[1] < part[2]]
        same_bits(case.convolve(CPU, arenas[0], step), case.convolve(GPU[order], arenas[1], step))
        same_bits(arenas[0].conv, arenas[1].conv)


@orders
@pytest.mark.parametrize("key_dim", [8, 32, 40, 128, 256])
def test_a_delta_rule_of_every_width(order, key_dim):
    case = Recurrence([5, 9], 4, 2, 24, key_dim)
    arenas = case.arena(), case.arena()
    for step in ([(0, 0, 3), (1, 0, 9)], [(0, 3, 5)]):
        same_bits(case.recur(CPU, arenas[0], step), case.recur(GPU[order], arenas[1], step))
        same_bits(arenas[0].delta, arenas[1].delta)


@orders
def test_logits_of_more_pieces_than_one(order):
    logits = random_rows(3, 9000)
    logits[0, 5000] = logits[0, 8999] = 1e9  # the lowest of equals
    logits[1, 4097] = np.inf
    logits[2] = -np.abs(logits[2])
    logits[2, 77] = -0.0
    logits[2, 78] = 0.0
    best, sums = {}, {}
    for name, ops in (("cpu", CPU), ("gpu", GPU[order])):
        best[name], sums[name] = np.empty(3, np.int32), np.empty(3, np.uint64)
        ops.logits_argmax(best[name], logits)
        ops.logits_sum(sums[name], logits)
    assert best["gpu"].tolist() == [5000, -1, 77]
    assert best["cpu"].tolist() == best["gpu"].tolist()
    assert sums["cpu"].tolist() == sums["gpu"].tolist()
