"""The packed layout: what LAYOUT.md draws, and back."""

import numpy as np
import pytest

from kernels.layout import (
    FORMATS,
    KINDS,
    dequantize_blocks,
    dequantize_rows,
    pack_matrix,
    packed_bytes,
    unpack_matrix,
)


def random_raw(kind, rows, cols):
    rng = np.random.default_rng(rows)
    if kind == "f32":
        return rng.standard_normal((rows, cols)).astype(np.float32)
    row_bytes = cols // 32 * FORMATS[kind].block_bytes
    return rng.integers(0, 256, (rows, row_bytes), dtype=np.uint8)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [1, 15, 16, 17, 100])
def test_unpack_gives_back_what_was_packed(kind, rows):
    raw = random_raw(kind, rows, 96)
    packed = pack_matrix(kind, raw, rows, 96)
    assert packed.size == packed_bytes(kind, rows, 96) and packed.dtype == np.uint8
    assert unpack_matrix(kind, packed, rows, 96).tobytes() == raw.tobytes()


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("q4_0", 576 * 18 * 18),
        ("q4_1", 576 * 18 * 20),
        ("q8_0", 576 * 18 * 34),
    ],
)
def test_full_tiles_cost_no_more_bytes_than_gguf(kind, expected):
    assert packed_bytes(kind, 576, 576) == expected


def test_a_unit_lies_as_drawn():
    """Row 3, block 1 of a q4_1 matrix, byte by byte."""
    raw = random_raw("q4_1", 16, 64)
    unit = pack_matrix("q4_1", raw, 16, 64)[320:640]
    block = raw[3, 20:40]
    assert (unit[2 * 3 : 2 * 3 + 2] == block[0:2]).all()
    assert (unit[32 + 2 * 3 : 32 + 2 * 3 + 2] == block[2:4]).all()
    for word in range(4):
        begin = 64 + 64 * word + 4 * 3
        assert (unit[begin : begin + 4] == block[4 + 4 * word : 8 + 4 * word]).all()


@pytest.mark.parametrize("kind", list(FORMATS))
def test_dequantised_values_are_those_of_gguf(kind):
    import gguf

    raw = random_raw(kind, 20, 96)
    blocks = raw.reshape(20, 3, -1)
    for half in range(FORMATS[kind].halves):
        blocks[..., 2 * half + 1] &= 0x3B  # no infinite or NaN scales
    expected = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[kind.upper()])
    np.testing.assert_allclose(dequantize_blocks(kind, raw), expected, rtol=1e-6, atol=1e-6)
    packed = pack_matrix(kind, raw, 20, 96)
    np.testing.assert_allclose(
        dequantize_rows(kind, packed, 20, 96), expected, rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize(
    ("kind", "shape", "rows", "cols"),
    [
        ("q4_0", (2, 18), 2, 64),
        ("q4_0", (2, 18), 3, 32),
        ("f32", (2, 3), 2, 4),
        ("q8_0", (1, 34), 1, 33),
    ],
)
def test_raw_bytes_of_another_shape_are_refused(kind, shape, rows, cols):
    raw = np.zeros(shape, np.float32 if kind == "f32" else np.uint8)
    with pytest.raises(AssertionError):
        pack_matrix(kind, raw, rows, cols)


def test_an_unknown_kind_is_refused():
    with pytest.raises(AssertionError):
        packed_bytes("q5_0", 32, 32)
