"""RoPE tables: right, and the same bits on every machine."""

import numpy as np
import pytest

from kernels.arithmetic import ARITHMETIC, ARITHMETIC_VERSION, TABLES_HASH, tables_hash
from kernels.tables import GrowingRope, rope_table


@pytest.mark.parametrize("theta", [1e4, 1e5, 5e5, 1e7])
@pytest.mark.parametrize("rotated", [2, 20, 64, 128])
def test_table_is_cos_and_sin(theta, rotated):
    table = rope_table(theta, rotated, 9000, None, adjacent=True)
    angle = np.arange(9000)[:, None] * theta ** (-np.arange(rotated // 2) * 2 / rotated)
    np.testing.assert_allclose(table.cos, np.cos(angle), atol=6.1e-8, rtol=0)
    np.testing.assert_allclose(table.sin, np.sin(angle), atol=6.1e-8, rtol=0)
    assert table.cos.shape == (9000, rotated // 2) and table.cos.dtype == np.float32


def test_factors_divide_the_frequencies():
    factors = np.array([1, 2, 8, 32], np.float32)
    table = rope_table(1e4, 8, 500, factors, adjacent=False)
    angle = np.arange(500)[:, None] * 1e4 ** (-np.arange(4) / 4) / factors
    np.testing.assert_allclose(table.sin, np.sin(angle), atol=6.1e-8, rtol=0)
    assert not table.adjacent


def test_a_short_table_is_the_beginning_of_a_long_one():
    long, short = (rope_table(1e4, 64, n, None, adjacent=True) for n in (5000, 77))
    assert (long.cos[:77] == short.cos).all() and (long.sin[:77] == short.sin).all()


@pytest.mark.parametrize("asked", [[1], [3000, 5000], [1, 2, 4097, 9000, 20_000, 10**6]])
def test_a_table_that_grows_has_the_bits_of_the_whole_one(asked):
    factors = np.linspace(1, 4, 16).astype(np.float32)
    whole = rope_table(5e5, 32, 20_000, factors, adjacent=False)
    rope = GrowingRope(5e5, 32, 20_000, factors, adjacent=False)
    for num_positions in asked:
        table = rope.covering(num_positions)
        size = len(table.cos)
        assert min(num_positions, 20_000) <= size <= 20_000 and not table.adjacent
        assert (table.cos == whole.cos[:size]).all() and (table.sin == whole.sin[:size]).all()
    assert asked != [1] or size < 20_000  # a short conversation costs little


def test_the_tables_have_the_bits_of_the_version():
    """If this fails, the code changed (then so must the version) or this machine breaks IEEE."""
    assert tables_hash() == TABLES_HASH
    assert f"{ARITHMETIC}-{TABLES_HASH}" == ARITHMETIC_VERSION


def test_the_page_has_the_version_of_the_code():
    from pathlib import Path

    import kernels

    page = Path(kernels.__file__).parent / "ARITHMETIC.md"
    assert f"Version **{ARITHMETIC}**" in page.read_text()
