"""Each type of GGUF tensor becomes a kind that the kernels know, at a known loss."""

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from gguf import quants

from kernels.layout import TILE_ROWS, dequantize_blocks
from workers.model.config import BadModel
from workers.model.convert import convert, kind_of, piece_rows
from workers.model.gguf_file import GgufTensor


class Memory:
    """A Source whose bytes are an array's."""

    def __init__(self, data):
        self.data = np.ascontiguousarray(data).reshape(-1).view(np.uint8)

    def read(self, begin, num_bytes):
        return self.data[begin : begin + num_bytes].copy()


WEIGHTS = np.random.default_rng(0).normal(size=(48, 512)).astype(np.float32)


def tensor(kind, values=WEIGHTS):
    return GgufTensor("w", kind, values.shape, Memory(quants.quantize(values, kind)))


def data_of(tensor):
    """All its rows as they lie in the file."""
    return tensor.rows(0, tensor.shape[0])


def pieces(tensor):
    rows, step = 1 if len(tensor.shape) == 1 else tensor.shape[0], piece_rows(tensor)
    return [convert(tensor, begin, min(begin + step, rows)) for begin in range(0, rows, step)]


def whole(tensor):
    """Kind, all pieces joined, and what was lost: the root mean square, relative."""
    made = pieces(tensor)
    weights = sum(p.weights for p in made)
    error = np.sqrt(sum(p.change for p in made) / weights) if weights else 0.0
    return kind_of(tensor), np.concatenate([p.raw for p in made]), error


def q4_k(rows, cols, seed=0):
    """Random Q4_K blocks: any nibbles and 6-bit scales are legal, the float16 are of usual size."""
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (rows * cols // 256, 144), np.uint8)
    blocks[:, :4] = rng.uniform(1e-4, 1e-2, (len(blocks), 2)).astype(np.float16).view(np.uint8)
    return GgufTensor("w", Type.Q4_K, (rows, cols), Memory(blocks))


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        (Type.Q4_0, "q4_0"),
        (Type.Q4_1, "q4_1"),
        (Type.Q8_0, "q8_0"),
        (Type.F32, "q8_0"),
        (Type.F16, "q8_0"),
        (Type.BF16, "q8_0"),
        (Type.Q5_0, "q8_0"),
        (Type.Q5_1, "q8_0"),
    ],
)
def test_the_kind_follows_from_the_type(source, kind):
    assert kind_of(tensor(source)) == kind


def test_q4_k_becomes_q4_1_and_q6_k_becomes_q8_0():
    assert kind_of(q4_k(2, 256)) == "q4_1"
    assert kind_of(GgufTensor("w", Type.Q6_K, (2, 256), Memory(b""))) == "q8_0"


@pytest.mark.parametrize("kind", [Type.Q4_0, Type.Q4_1, Type.Q8_0])
def test_kinds_the_kernels_know_keep_every_byte(kind):
    before = tensor(kind)
    _, raw, error = whole(before)
    np.testing.assert_array_equal(raw, data_of(before))
    assert error == 0.0


@pytest.mark.parametrize("kind", [Type.F32, Type.F16, Type.BF16, Type.Q5_0])
def test_other_types_lose_what_eight_bits_lose(kind):
    """Half a step of amax / 127, amax about 2.5 deviations in a block of 32: near 0.6 %."""
    before = tensor(kind)
    _, raw, error = whole(before)
    values = quants.dequantize(data_of(before), kind).astype(np.float64)
    change = dequantize_blocks("q8_0", raw) - values
    assert error == pytest.approx(np.sqrt((change**2).sum() / (values**2).sum()), rel=1e-3)
    assert 0.001 < error < 0.01


def test_q4_k_keeps_its_four_bit_values():
    """Only scale and minimum are rounded, to float16: 2^-11 of each at most."""
    before = q4_k(6, 512)
    _, raw, error = whole(before)
    values = quants.dequantize(data_of(before), Type.Q4_K)
    blocks = raw.reshape(-1, 20)
    scale, minimum = np.abs(np.ascontiguousarray(blocks[:, :4]).view(np.float16)).T.astype(float)
    bound = (15 * scale + minimum)[:, None] * 2.0**-11 + 1e-7
    change = np.abs(dequantize_blocks("q4_1", raw) - values).reshape(-1, 32)
    assert (change <= bound).all()
    assert error < 1e-3


def test_q6_k_is_read():
    rng = np.random.default_rng(0)
    blocks = rng.integers(0, 256, (4, 210), np.uint8)
    blocks[:, 208:] = np.full((4, 1), 1e-3, np.float16).view(np.uint8)
    before = GgufTensor("w", Type.Q6_K, (4, 256), Memory(blocks))
    assert 0 < whole(before)[2] < 0.02


def test_q5_k_is_read():
    rng = np.random.default_rng(1)
    blocks = rng.integers(0, 256, (4, 176), np.uint8)
    blocks[:, :4] = rng.uniform(1e-4, 1e-2, (4, 2)).astype(np.float16).view(np.uint8)
    before = GgufTensor("w", Type.Q5_K, (4, 256), Memory(blocks))
    kind, raw, error = whole(before)
    values = quants.dequantize(data_of(before), Type.Q5_K)
    change = dequantize_blocks("q8_0", raw) - values
    assert kind == "q8_0"
    assert error == pytest.approx(np.sqrt((change**2).sum() / (values**2).sum()), rel=1e-3)
    assert 0 < error < 0.01


@pytest.mark.parametrize("kind", [Type.F32, Type.F16])
def test_rows_that_are_no_multiple_of_32_stay_float(kind):
    before = tensor(kind, WEIGHTS[:, :40])
    after_kind, raw, _ = whole(before)
    assert after_kind == "f32"
    np.testing.assert_array_equal(raw, quants.dequantize(data_of(before), kind))


def test_vectors_become_float():
    kind, raw, _ = whole(tensor(Type.F16, WEIGHTS[0]))
    assert (kind, raw.dtype, raw.shape) == ("f32", np.float32, (1, 512))


def test_rows_convert_alike_on_both_sides_of_an_edge():
    """Pieces are whole tiles, and a piece's rows do not know of other rows."""
    values = np.tile(WEIGHTS, (43, 1))
    edge = piece_rows(tensor(Type.F32, values))
    assert [len(p.raw) for p in pieces(tensor(Type.F32, values))] == [edge, len(values) - edge]
    assert edge % TILE_ROWS == 0
    raw = whole(tensor(Type.F32, values))[1]
    np.testing.assert_array_equal(
        raw[edge - 2 : edge + 2], whole(tensor(Type.F32, values[edge - 2 : edge + 2]))[1]
    )


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", [Type.F32, Type.F16, Type.Q8_0, Type.Q4_0])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_weights_that_are_not_finite_are_refused(kind, value):
    values = WEIGHTS.copy()
    values[3, 5] = value
    with pytest.raises(BadModel, match="tensor w holds values that are not finite"):
        whole(tensor(kind, values))


def test_a_type_nobody_can_read_is_named():
    unknown = GgufTensor("w", Type.I32, (2, 32), Memory(np.zeros(64, np.int32)))
    with pytest.raises(BadModel, match="tensor w has type I32"):
        whole(unknown)
