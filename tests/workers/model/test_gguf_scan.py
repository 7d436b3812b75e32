"""A damaged GGUF is refused at once: no length in it makes anybody read on for ever."""

import os
import struct

import pytest
from gguf import GGUFReader
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.workers.model.small_gguf import Small, write_gguf
from workers.model import catalog
from workers.model.config import BadModel
from workers.model.gguf_file import GgufFile
from workers.model.gguf_scan import scan

HEADER = struct.Struct("<4sIQQ")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The bytes of a good file; its metadata and list of tensors are the first 4 KiB."""
    path = tmp_path_factory.mktemp("gguf") / "small.gguf"
    return write_gguf(path, Small(layers=1)).read_bytes()


def field(key, kind, value):
    return struct.pack("<Q", len(key)) + key + struct.pack("<I", kind) + value


def refused(folder, data, said):
    path = folder / "bad.gguf"
    path.write_bytes(data)
    with pytest.raises(BadModel, match=said):
        scan(path)


def test_a_good_file_is_read_as_the_gguf_package_reads_it(tmp_path, whole):
    """Every key and every line of the list of tensors."""
    path = tmp_path / "good.gguf"
    path.write_bytes(whole)
    ours, theirs = scan(path), GGUFReader(path)
    fields = {k: f.contents() for k, f in theirs.fields.items() if not k.startswith("GGUF.")}
    assert ours.fields == fields
    begin = theirs.data_offset
    lines = [
        (t.name, tuple(t.shape[::-1].tolist()), int(t.tensor_type), t.data_offset - begin)
        for t in theirs.tensors
    ]
    assert [(t.name, t.shape, t.type, t.offset) for t in ours.tensors] == lines


def test_numbers_of_every_type_are_read(tmp_path):
    kinds = "BbHhIif?Qqd"
    fields = b""
    for number, code in zip([0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12], kinds, strict=True):
        one = struct.pack(f"<{code}", 1)
        fields += field(b"n" + code.encode(), number, one)
        fields += field(b"a" + code.encode(), 9, struct.pack("<IQ", number, 3) + one * 3)
    path = tmp_path / "numbers.gguf"
    path.write_bytes(HEADER.pack(b"GGUF", 3, 0, 2 * len(kinds)) + fields)
    found = scan(path).fields
    assert {f"n{code}": 1 for code in kinds} | {f"a{code}": [1] * 3 for code in kinds} == found
    assert (found["n?"], found["a?"]) == (True, [True] * 3)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (field(b"k", 99, b""), "k has the unknown type 99"),
        (field(b"k", 8, struct.pack("<Q", 2**63)), "end in 'k'"),
        (field(b"k", 9, struct.pack("<IQ", 4, 2**62)), "end in 'k'"),
        (field(b"k", 9, struct.pack("<IQ", 8, 2**62)), "end in 'k'"),
        (field(b"k", 9, struct.pack("<IQ", 9, 1) * 9), "k has the unknown type 9"),
        (struct.pack("<Q", 2**64 - 1) + bytes(9), "end in 'metadata'"),
        (field(b"k\n", 0, b"1"), r"metadata names something 'k\\n'"),
        (field(b"k", 8, struct.pack("<Q", 1) + b"\xff"), "k holds text that is not UTF-8"),
    ],
    ids=["type", "string", "numbers", "strings", "nested", "key", "name", "text"],
)
def test_a_damaged_field_is_named(tmp_path, value, said):
    refused(tmp_path, HEADER.pack(b"GGUF", 3, 0, 1) + value, said)


def test_counts_past_the_end_are_refused(tmp_path):
    refused(tmp_path, HEADER.pack(b"GGUF", 3, 0, 2**63), "truncated or damaged")
    refused(tmp_path, HEADER.pack(b"GGUF", 3, 2**63, 0), "the list of tensors")


def test_a_tensor_of_many_dimensions_is_refused(tmp_path):
    tensor = struct.pack("<Q", 1) + b"t" + struct.pack("<I", 2**31) + bytes(99)
    refused(tmp_path, HEADER.pack(b"GGUF", 3, 1, 0) + tensor, "tensor t has 2147483648 dimensions")


def line(name, shape, kind, offset):
    """One line of the list of tensors."""
    sizes = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return struct.pack("<Q", len(name)) + name + sizes + struct.pack("<IQ", kind, offset)


F32, Q4_0 = 0, 2


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([line(b"t", (0, 4), F32, 0)], r"tensor t has shape \(4, 0\)"),
        ([line(b"t", (2**62, 2**62), F32, 0)], "tensor t has shape"),
        ([line(b"t", (4,), 77, 0)], "tensor t has the unknown type 77"),
        ([line(b"t", (33,), Q4_0, 0)], "tensor t has rows of 33, not whole blocks of Q4_0"),
        ([line(b"t", (4,), F32, 2**40)], "truncated or damaged: its .* bytes end in tensor t"),
        ([line(b"t", (2**30,), F32, 0)], "truncated or damaged: its .* bytes end in tensor t"),
        ([line(b"a", (8,), F32, 0), line(b"b", (8,), F32, 16)], "tensor b overlaps a"),
        ([line(b"a", (4,), F32, 0), line(b"a", (4,), F32, 32)], "tensor a again"),
        ([line(b"", (4,), F32, 0)], "the list of tensors names something ''"),
    ],
    ids=["none", "huge", "type", "block", "offset", "end", "overlap", "twice", "nameless"],
)
def test_a_tensor_that_cannot_be_is_named(tmp_path, lines, said):
    path = tmp_path / "bad.gguf"
    path.write_bytes(HEADER.pack(b"GGUF", 3, len(lines), 0) + b"".join(lines) + bytes(200))
    with pytest.raises(BadModel, match=said) as caught:
        GgufFile(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("alignment", [0, 3, 2**31])
def test_an_alignment_that_is_no_power_of_two_is_refused(tmp_path, alignment):
    path = tmp_path / "bad.gguf"
    key = field(b"general.alignment", 4, struct.pack("<I", alignment))
    path.write_bytes(HEADER.pack(b"GGUF", 3, 0, 1) + key)
    with pytest.raises(BadModel, match=f"general.alignment is {alignment}"):
        GgufFile(path)


def test_a_file_cut_short_while_it_is_read_is_an_error(tmp_path, whole):
    """Not a signal, as a mapping would give."""
    path = tmp_path / "good.gguf"
    path.write_bytes(whole)
    tensor = GgufFile(path).tensors["blk.0.ffn_down.weight"]
    os.truncate(path, tensor.begin + 10)
    with pytest.raises(BadModel, match=r"good.gguf became shorter"):
        tensor.rows(0, 64)


@pytest.mark.parametrize("version", [0, 1, 4, 0x03000000])
def test_another_version_is_named(tmp_path, version):
    refused(tmp_path, HEADER.pack(b"GGUF", version, 0, 0), f"GGUF version {version}")


@settings(max_examples=60)
@given(at=st.integers(0, 3600), value=st.integers(0, 255))
@example(at=24, value=255)
def test_one_wrong_byte_is_refused_or_harmless(tmp_path_factory, whole, at, value):
    """Whatever else a wrong byte of the metadata does, it ends, and raises nothing but BadModel."""
    home = tmp_path_factory.mktemp("home")
    (home / "bad.gguf").write_bytes(whole[:at] + bytes([value]) + whole[at + 1 :])
    try:
        folder = catalog.add(home / "bad.gguf", "bad", home, progress=None)
    except BadModel as error:
        assert "\n" not in str(error)
        assert catalog.names(home) == []
    else:
        assert catalog.ensure(home, "bad", progress=None) == folder
