"""weights.pack gives back what was put in; a damaged one is refused (workers/model/PACK.md)."""

import struct
import tracemalloc
import zlib

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type

from kernels.layout import unpack_matrix
from tests.workers.model.small_gguf import Small, write_gguf
from workers.model import convert
from workers.model.build import architecture_of
from workers.model.config import BadModel
from workers.model.gguf_file import GgufFile
from workers.model.pack import ALIGNMENT, HEADER, OtherLayout, Weights
from workers.model.packer import write_pack

SMALL = Small(has_biases=True, types={"attn_q": Type.Q4_0, "ffn_up": Type.Q4_1})


def pack(folder, small=SMALL, metadata=None):
    """(the GGUF, the pack, its digest)"""
    source = folder / "small.gguf"
    file = GgufFile(source if source.exists() else write_gguf(source, small))
    architecture = architecture_of("llama")
    config = architecture.config(file.fields, file.vocab_size())
    tensors = file.matching(architecture.tensors(config))
    path = folder / "weights.pack"
    digest, _ = write_pack(path, config, metadata or {}, tensors, lambda *_: None)
    return file, path, digest


@pytest.fixture
def packed(tmp_path):
    return pack(tmp_path)


@pytest.mark.parametrize("in_huge_pages", [False, True])
def test_matrices_and_vectors_come_back(packed, in_huge_pages):
    file, path, digest = packed
    weights = Weights.open(path, in_huge_pages=in_huge_pages)
    assert weights.digest == digest
    assert weights.config.num_layers == 2
    for name, tensor in file.tensors.items():
        if len(tensor.shape) == 1:
            np.testing.assert_array_equal(weights.vector(name).view(np.uint8), tensor.rows(0, 1)[0])
        else:
            matrix = weights.matrix(name)
            raw = unpack_matrix(matrix.kind, matrix.data, matrix.rows, matrix.cols)
            np.testing.assert_array_equal(raw, tensor.rows(0, matrix.rows))


def test_kinds_are_those_of_the_file(packed):
    weights = Weights.open(packed[1])
    kinds = [weights.matrix(f"blk.0.{n}.weight").kind for n in ("attn_q", "ffn_up", "attn_k")]
    assert kinds == ["q4_0", "q4_1", "q8_0"]


@pytest.mark.parametrize("in_huge_pages", [False, True])
def test_tensors_begin_at_pages_and_cannot_be_written(packed, in_huge_pages):
    weights = Weights.open(packed[1], in_huge_pages=in_huge_pages)
    for name in packed[0].tensors:
        is_vector = len(packed[0].tensors[name].shape) == 1
        data = weights.vector(name) if is_vector else weights.matrix(name).data
        assert data.ctypes.data % ALIGNMENT == 0
        with pytest.raises(ValueError, match="read-only"):
            data[0] = 0


def test_the_digest_knows_every_weight_and_what_shapes_the_computation(tmp_path):
    def digest(name, small=SMALL, metadata=None):
        (tmp_path / name).mkdir()
        return pack(tmp_path / name, small, metadata)[2]

    one = digest("one")
    assert digest("again") == one
    assert digest("seed", Small(**{**vars(SMALL), "seed": 2})) != one
    assert digest("kind", Small(**{**vars(SMALL), "types": {}})) != one
    assert digest("eps", metadata={"llama.rms": 1}) != one
    changed = {"blk.1.attn_k.bias": np.zeros(32)}
    assert digest("bias", Small(**{**vars(SMALL), "tensors": changed})) != one


def test_no_tensor_lies_in_memory_as_a_whole(tmp_path, monkeypatch):
    """The embedding has 49 MB in the file; a few pieces of 65,536 weights are in hand at a time."""
    monkeypatch.setattr(convert, "CHUNK_VALUES", 1 << 16)
    wide = {"token_embd.weight": np.zeros((48_000, 256), np.float32)}
    small = Small(hidden=256, tensors=wide, type=Type.F32)
    write_gguf(tmp_path / "small.gguf", small)
    tracemalloc.start()
    try:
        _, path, _ = pack(tmp_path, small)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert path.stat().st_size > 13_000_000
    assert peak < 12_000_000


def test_every_truncation_is_refused(packed, tmp_path):
    whole = packed[1].read_bytes()
    short = tmp_path / "short.pack"
    for size in (0, 1, HEADER.size - 1, HEADER.size, 1000, len(whole) // 2, len(whole) - 1):
        short.write_bytes(whole[:size])
        with pytest.raises(BadModel, match="damaged"):
            Weights.open(short)


def test_every_flipped_byte_of_header_and_index_is_refused(packed, tmp_path):
    whole = bytearray(packed[1].read_bytes())
    index_bytes = HEADER.unpack(whole[: HEADER.size])[3]
    flipped = tmp_path / "flipped.pack"
    for at in [*range(HEADER.size), *range(HEADER.size, HEADER.size + index_bytes, 97)]:
        whole[at] ^= 0x10
        flipped.write_bytes(whole)
        with pytest.raises(BadModel):
            Weights.open(flipped)
        whole[at] ^= 0x10


@pytest.mark.parametrize(("offset", "what"), [(8, "version 9"), (10, "layout 9")])
def test_another_version_is_known_as_such(packed, offset, what):
    """Not damaged: such a pack is made again."""
    whole = bytearray(packed[1].read_bytes())
    struct.pack_into("<H", whole, offset, 9)
    struct.pack_into("<I", whole, 60, zlib.crc32(whole[:60]))
    packed[1].write_bytes(whole)
    with pytest.raises(OtherLayout, match=what):
        Weights.open(packed[1])


def test_a_flipped_byte_of_a_weight_is_found_when_asked(packed):
    """open() trusts the tensors: reading 15 GB takes a while."""
    Weights.open(packed[1]).check(lambda *_: None)
    whole = bytearray(packed[1].read_bytes())
    whole[ALIGNMENT + 100] ^= 1
    packed[1].write_bytes(whole)
    with pytest.raises(BadModel, match="the weights are damaged: digest"):
        Weights.open(packed[1]).check(lambda *_: None)


def test_another_file_is_no_pack(tmp_path):
    path = tmp_path / "weights.pack"
    path.write_bytes(b"GGUF" * 100)
    with pytest.raises(BadModel, match="not a weights pack"):
        Weights.open(path)


def test_an_absent_pack_is_named(tmp_path):
    with pytest.raises(BadModel, match=r"weights.pack cannot be read: No such file"):
        Weights.open(tmp_path / "weights.pack")
