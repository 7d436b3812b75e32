"""A damaged GGUF is refused at once: no length in it makes anybody read on for ever."""

import struct

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.workers.model.small_gguf import Small, write_gguf
from workers.model import catalog
from workers.model.config import BadModel
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


def test_a_good_file_is_walked_to_its_end(tmp_path, whole):
    path = tmp_path / "good.gguf"
    path.write_bytes(whole)
    assert scan(path) is None


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (field(b"k", 99, b""), "k has the unknown type 99"),
        (field(b"k", 8, struct.pack("<Q", 2**63)), "end in 'k'"),
        (field(b"k", 9, struct.pack("<IQ", 4, 2**62)), "end in 'k'"),
        (field(b"k", 9, struct.pack("<IQ", 8, 2**62)), "end in 'k'"),
        (field(b"k", 9, struct.pack("<IQ", 9, 1) * 9), "k has the unknown type 9"),
        (struct.pack("<Q", 2**64 - 1), "end in 'metadata'"),
    ],
    ids=["type", "string", "numbers", "strings", "nested", "key"],
)
def test_a_damaged_field_is_named(tmp_path, value, said):
    refused(tmp_path, HEADER.pack(b"GGUF", 3, 0, 1) + value, said)


def test_counts_past_the_end_are_refused(tmp_path):
    refused(tmp_path, HEADER.pack(b"GGUF", 3, 0, 2**63), "truncated or damaged")
    refused(tmp_path, HEADER.pack(b"GGUF", 3, 2**63, 0), "the list of tensors")


def test_a_tensor_of_many_dimensions_is_refused(tmp_path):
    tensor = struct.pack("<Q", 1) + b"t" + struct.pack("<I", 2**31)
    refused(tmp_path, HEADER.pack(b"GGUF", 3, 1, 0) + tensor, "tensor t has 2147483648 dimensions")


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
