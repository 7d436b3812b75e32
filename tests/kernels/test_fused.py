"""Ops that do what several others do, in one call: project, gated_project, add_norm, attend.

Each must give the very bits of its parts, for every number of tokens, threads and instruction set.
"""

import dataclasses
from functools import cache

import numpy as np
import pytest

from kernels.layout import FORMATS
from kernels.ops import GELU, SILU, first_rows, quantized_rows
from kernels.reference import ReferenceOps
from kernels.tables import rope_table
from tests.kernels.cases import (
    QUANTISED,
    Conversation,
    quantized,
    random_matrix,
    random_rows,
    same_bits,
)

TOKENS = (1, 2, 5, 7, 70)
COLS = 288


def same_rows(expected, actual):
    for part in ("values", "scales", "sums"):
        same_bits(getattr(expected, part), getattr(actual, part))


def empty(*shape):
    return np.full(shape, np.nan, np.float32)


@pytest.mark.parametrize("num_tokens", TOKENS)
def test_project_has_the_bits_of_products_and_biases(ops, scalar, num_tokens):
    """Kinds mixed, tiles cut, more rows than one piece holds, some with a bias."""
    shapes = [("q4_0", 37), ("q8_0", 150), ("q4_1", 16), ("q4_0", 1)]
    weights = tuple(random_matrix(kind, rows, COLS, i) for i, (kind, rows) in enumerate(shapes))
    biases = (random_rows(1, 37)[0], None, random_rows(1, 16)[0], None)
    x = quantized(ops, random_rows(num_tokens, COLS))
    outs = tuple(empty(num_tokens, w.rows) for w in weights)
    ops.project(outs, x, weights, biases)
    for out, weight, bias in zip(outs, weights, biases, strict=True):
        expected = empty(num_tokens, weight.rows)
        scalar.matmul(expected, x, weight)
        if bias is not None:
            scalar.add(expected, bias)
        same_bits(expected, out)


@pytest.mark.parametrize("activation", [SILU, GELU])
@pytest.mark.parametrize("kind", QUANTISED)
@pytest.mark.parametrize("num_tokens", TOKENS)
def test_gated_project_has_the_bits_of_its_parts(ops, scalar, num_tokens, kind, activation):
    rows = 96 + 64 * (num_tokens == 1)
    weights = random_matrix(kind, rows, COLS), random_matrix("q4_1", rows, COLS, 1)
    biases = random_rows(1, rows)[0], None
    x = quantized(ops, random_rows(num_tokens, COLS))
    results = []
    for side in (scalar, ops):
        out, gate, up = quantized_rows(num_tokens, rows), *(empty(num_tokens, rows) for _ in "gu")
        side.gated_project(out, gate, up, x, weights, biases, activation)
        results.append((out, gate, up))
    (law, law_gate, law_up), (out, gate, up) = results
    same_rows(law, out)
    same_bits(law_gate, gate)
    same_bits(law_up, up)


@pytest.mark.parametrize("has_branch", [True, False])
@pytest.mark.parametrize("is_quantized", [True, False])
@pytest.mark.parametrize("num_tokens", TOKENS)
def test_add_norm_has_the_bits_of_its_parts(ops, scalar, num_tokens, has_branch, is_quantized):
    hidden = random_rows(num_tokens, COLS)
    branch = random_rows(num_tokens, COLS, 1) if has_branch else None
    results = []
    for side in (scalar, ops):
        own, normed = hidden.copy(), empty(num_tokens, COLS)
        out = quantized_rows(num_tokens, COLS)
        side.add_norm(
            normed, out if is_quantized else None, own, branch, random_rows(1, COLS, 2)[0], 1e-5
        )
        results.append((own, normed, out))
    same_bits(results[0][0], results[1][0])
    same_bits(results[0][1], results[1][1])
    if is_quantized:
        same_rows(results[0][2], results[1][2])


@cache
def attended(side, scalar, shape, adjacent, window):
    """Two sequences of which the second half of the tokens comes in this step; once for a side."""
    heads, kv_heads, head_dim = shape
    talk = Conversation([140, 70], heads, kv_heads, head_dim)
    table = rope_table(1e4, head_dim // 2, 200, None, adjacent)
    rows = np.array([*range(70, 140), *range(175, 210)])
    step, kv, width = talk.step(rows), talk.stored(scalar), heads * head_dim
    out = empty(rows.size, heads, head_dim)
    quants = quantized_rows(rows.size, width) if width % 32 == 0 else None
    q, k, v = (np.ascontiguousarray(x[rows]) for x in (talk.q, talk.k, talk.v))
    side.attend(out, quants, q, k, v, table, kv, 1, step, talk.scale, window)
    return out, quants, q, k, kv.blocks


@pytest.mark.parametrize("window", [0, 70])
@pytest.mark.parametrize("adjacent", [True, False])
@pytest.mark.parametrize("shape", [(4, 2, 32), (9, 3, 64), (12, 2, 128), (2, 1, 72)])
def test_attend_has_the_bits_of_its_parts(ops, scalar, shape, adjacent, window):
    law = attended(scalar, scalar, shape, adjacent, window)
    for expected, actual in zip(law, attended(ops, scalar, shape, adjacent, window), strict=True):
        if isinstance(expected, np.ndarray):
            same_bits(expected, actual)
        elif expected is not None:
            same_rows(expected, actual)


@pytest.mark.parametrize("kind", FORMATS)
def test_the_judge_and_the_law_agree_on_what_is_fused(judge, scalar, kind):
    """The judge's fused ops are its parts, and so are the law's: one text for both."""
    assert type(scalar).project is ReferenceOps.project
    x = quantized(scalar, random_rows(3, COLS))
    w = random_matrix(kind, 32, COLS)
    for side in (judge, scalar):
        one, many = empty(3, 32), empty(3, 32)
        side.matmul(one, x, w)
        side.project((many,), x, (w,), (None,))
        same_bits(one, many)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_row_that_is_not_finite_spoils_itself_only(ops, bad):
    weights = random_matrix("q4_0", 64, COLS), random_matrix("q4_0", 64, COLS, 1)
    hidden = random_rows(6, COLS)

    def gated(rows):
        normed, quants, out = empty(6, COLS), quantized_rows(6, COLS), quantized_rows(6, 64)
        ops.add_norm(normed, quants, rows.copy(), None, np.ones(COLS, np.float32), 1e-5)
        ops.gated_project(out, empty(6, 64), empty(6, 64), quants, weights, (None, None), SILU)
        return out

    clean = gated(hidden)
    hidden[3, 5] = bad
    spoiled = gated(hidden)
    assert np.isnan(spoiled.scales[3]).all()
    same_rows(first_rows(clean, 3), first_rows(spoiled, 3))
    after = [dataclasses.replace(q, values=q.values[4:], scales=q.scales[4:], sums=q.sums[4:])
             for q in (clean, spoiled)]  # fmt: skip
    same_rows(*after)
