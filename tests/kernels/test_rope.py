"""rope: pairs of dimensions turned by the angle of their position."""

import numpy as np
import pytest

from kernels.tables import rope_table
from tests.kernels.cases import close, same_bits

CASES = [  # heads, head_dim, rotated
    (9, 64, 64), (3, 64, 64), (2, 256, 64), (1, 40, 20), (2, 8, 2), (1, 128, 126),
]  # fmt: skip


def turned(ops, heads, head_dim, rotated, adjacent):
    rng = np.random.default_rng(head_dim)
    x = rng.standard_normal((7, heads, head_dim)).astype(np.float32)
    positions = rng.integers(0, 1000, 7).astype(np.int32)
    ops.rope(x, positions, rope_table(1e4, rotated, 1000, None, adjacent))
    return x


@pytest.mark.parametrize("adjacent", [True, False])
@pytest.mark.parametrize(("heads", "head_dim", "rotated"), CASES)
def test_rope_agrees_with_the_judge(ops, judge, tolerance, heads, head_dim, rotated, adjacent):
    shape = heads, head_dim, rotated, adjacent
    close(turned(judge, *shape), turned(ops, *shape), tolerance["rope"])


@pytest.mark.parametrize("adjacent", [True, False])
@pytest.mark.parametrize(("heads", "head_dim", "rotated"), CASES)
def test_rope_has_the_bits_of_the_law(ops, scalar, heads, head_dim, rotated, adjacent):
    shape = heads, head_dim, rotated, adjacent
    same_bits(turned(scalar, *shape), turned(ops, *shape))


def test_position_zero_turns_nothing(ops):
    x = np.arange(64, dtype=np.float32).reshape(1, 1, 64)
    ops.rope(x, np.zeros(1, np.int32), rope_table(1e4, 64, 4, None, True))
    assert x.ravel().tolist() == list(range(64))
