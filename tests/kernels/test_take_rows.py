"""take_rows: the rows whose logits are wanted, as they are."""

import numpy as np
import pytest

from tests.kernels.cases import random_rows, same_bits


@pytest.mark.parametrize("rows", [[0], [6], [5, 0, 6, 3]])
def test_rows_are_copied_bit_for_bit(ops, rows):
    x, out = random_rows(7, 40), np.full((len(rows), 40), np.nan, np.float32)
    x[3, 5] = -0.0
    ops.take_rows(out, x, np.array(rows, np.int32))
    same_bits(out, x[rows])
