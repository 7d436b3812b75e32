"""embed: rows of a packed table, dequantised."""

import numpy as np
import pytest

from kernels.layout import KINDS
from tests.kernels.cases import close, random_matrix, same_bits


def embedded(ops, table, token_ids):
    out = np.full((token_ids.size, table.cols), np.nan, np.float32)
    ops.embed(out, table, token_ids)
    return out


@pytest.mark.parametrize("kind", KINDS)
def test_embed_agrees_with_judge_and_law(ops, judge, scalar, tolerance, kind):
    table = random_matrix(kind, 77, 96)
    token_ids = np.array([0, 76, 15, 16, 31, 32, 5, 5], np.int32)
    actual = embedded(ops, table, token_ids)
    close(embedded(judge, table, token_ids), actual, tolerance["embed"])
    same_bits(embedded(scalar, table, token_ids), actual)
