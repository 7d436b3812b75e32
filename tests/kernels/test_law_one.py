"""Law one on the CPU: a row's bits depend on that row alone.

Not on the batch it is in, nor the thread count, nor how the tokens are cut into calls, nor the run.
"""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.cpu.host import CpuOps, usable_isas
from kernels.layout import KINDS
from kernels.tables import rope_table
from tests.kernels.cases import (
    Conversation,
    product,
    quantized,
    random_matrix,
    random_rows,
    same_bits,
)

MATRICES = {kind: random_matrix(kind, 150, 544) for kind in KINDS}
ROWS = random_rows(16, 544)
ALONE = {
    kind: np.concatenate([product(CpuOps(1, "avx2"), ROWS[t : t + 1], w) for t in range(16)])
    for kind, w in MATRICES.items()
}
TALK = Conversation([150, 40, 270], 6, 2, 32)
KV = TALK.stored(CpuOps(1))
SEEN = TALK.attend(CpuOps(1), KV, np.arange(460))
NEAR = TALK.attend(CpuOps(1), KV, np.arange(460), 70)  # with a window of 70

threads = st.integers(1, 6)
isas = st.sampled_from(usable_isas())
cuts = st.lists(st.integers(1, 15), max_size=5, unique=True).map(lambda c: [0, *sorted(c), 16])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("isa", usable_isas())
@pytest.mark.parametrize("num_tokens", range(1, 17))
def test_a_product_has_the_same_bits_in_every_batch_size(kind, isa, num_tokens):
    for count in (1, 2, 3):
        rows = np.ascontiguousarray(ROWS[:num_tokens])
        actual = product(CpuOps(count, isa), rows, MATRICES[kind])
        same_bits(ALONE[kind][:num_tokens], actual)


@given(kind=st.sampled_from(KINDS), cuts=cuts, count=threads, isa=isas)
def test_a_product_has_the_same_bits_however_the_tokens_are_cut(kind, cuts, count, isa):
    ops = CpuOps(count, isa)
    pieces = [ROWS[a:b] for a, b in pairwise(cuts)]
    same_bits(ALONE[kind], np.concatenate([product(ops, p, MATRICES[kind]) for p in pieces]))


@given(
    kind=st.sampled_from(KINDS),
    order=st.permutations(range(16)),
    size=st.integers(1, 16),
    count=threads,
    isa=isas,
)
def test_a_product_has_the_same_bits_among_any_neighbours(kind, order, size, count, isa):
    chosen = list(order[:size])
    actual = product(CpuOps(count, isa), np.ascontiguousarray(ROWS[chosen]), MATRICES[kind])
    same_bits(ALONE[kind][chosen], actual)


@given(rows=st.sets(st.integers(0, 459), min_size=1, max_size=80), count=threads)
def test_attention_has_the_same_bits_for_any_tokens_in_the_step(rows, count):
    chosen = np.array(sorted(rows))
    same_bits(SEEN[chosen], TALK.attend(CpuOps(count), KV, chosen))


@given(begin=st.integers(0, 459), size=st.integers(1, 200), count=threads)
def test_attention_has_the_same_bits_for_any_chunk(begin, size, count):
    chosen = np.arange(begin, min(begin + size, 460))
    same_bits(SEEN[chosen], TALK.attend(CpuOps(count), KV, chosen))
    same_bits(NEAR[chosen], TALK.attend(CpuOps(count), KV, chosen, 70))


@given(cuts=cuts, count=threads)
def test_row_ops_have_the_same_bits_however_the_tokens_are_cut(cuts, count):
    table = rope_table(1e4, 32, 64, None, adjacent=True)
    whole, pieces = row_ops(CpuOps(1), ROWS, table, 0), []
    for begin, end in pairwise(cuts):
        pieces.append(row_ops(CpuOps(count), ROWS[begin:end], table, begin))
    for expected, parts in zip(whole, zip(*pieces, strict=True), strict=True):
        same_bits(expected, np.concatenate(parts))


def row_ops(ops, x, table, first_position):
    """Norms, quantisation, RoPE and gates of some rows."""
    normed, gated, gelued, gate = (np.empty_like(x) for _ in range(4))
    ops.rms_norm(normed, x, ROWS[3], 1e-5)
    ops.silu_mul(gated, x, normed)
    ops.gelu_mul(gelued, x, normed)
    ops.sigmoid_mul(gate, x, normed)
    unit, decay, beta = np.empty_like(x.reshape(-1, 17, 32)), np.empty_like(x), np.empty_like(x)
    ops.l2_norm(unit, x.reshape(-1, 17, 32), 1e-6, 1.0)
    ops.delta_gates(decay, beta, x, normed, -np.abs(ROWS[2]), ROWS[3])
    heads = x.copy().reshape(x.shape[0], 17, 32)
    ops.rope(heads, np.arange(first_position, first_position + len(x), dtype=np.int32), table)
    quants = quantized(ops, normed)
    gates = gated, gelued, gate, decay, beta
    return normed, unit, *gates, heads, quants.values, quants.scales, quants.sums


def test_a_hundred_runs_give_the_same_bits():
    for _ in range(100):
        same_bits(ALONE["q4_0"], product(CpuOps(2), ROWS, MATRICES["q4_0"]))
        same_bits(SEEN, TALK.attend(CpuOps(2), KV, np.arange(460)))
