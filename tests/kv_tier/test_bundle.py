"""An export is whole or refused: each cut, each flipped byte, each byte too many."""

import pytest

from kv_tier.bundle import BLOCK, MANIFEST, PIECE_BYTES, TAIL, BadExport, Reader, Writer

KEY = bytes(range(32))
PARTS = [(MANIFEST, b"what it is", bytes(32), 0), (BLOCK, b"k" * 70, KEY, 256), (TAIL, b"", KEY, 3)]


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "a.lockstep"
    write(path, PARTS)
    return path


def write(path, parts):
    with path.open("wb") as file:
        writer = Writer(file)
        for type_, payload, key, num_tokens in parts:
            writer.add(type_, [payload[:3], payload[3:]], key=key, num_tokens=num_tokens)
        writer.close()


def read(path):
    reader = Reader(path)
    try:
        found = list(reader.verified())
        return [(r.type, bytes(reader.payload(r)), r.key, r.num_tokens) for r in found]
    finally:
        reader.close()


def test_what_was_written_is_read(path):
    assert read(path) == PARTS


def test_payloads_of_several_pieces_are_read(tmp_path):
    parts = [(BLOCK, bytes(range(256)) * 5000 + b"end", KEY, 256)]
    assert len(parts[0][1]) > PIECE_BYTES
    write(tmp_path / "long", parts)
    assert read(tmp_path / "long") == parts


def test_an_export_of_nothing_is_whole(tmp_path):
    write(tmp_path / "empty", [])
    assert read(tmp_path / "empty") == []


def test_every_cut_is_refused(path):
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(BadExport):
            read(path)


def test_every_flipped_byte_is_refused(path):
    whole = path.read_bytes()
    for position in range(len(whole)):
        changed = bytearray(whole)
        changed[position] ^= 0x40
        path.write_bytes(changed)
        with pytest.raises(BadExport):
            read(path)


def test_bytes_behind_the_end_are_refused(path):
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(BadExport, match="does not fit"):
        read(path)


def test_a_record_that_was_taken_out_is_missed(path, tmp_path):
    """Each record is whole by itself; only the end knows how many there were."""
    write(tmp_path / "shorter", PARTS[:2])
    shorter, whole = (tmp_path / "shorter").read_bytes(), path.read_bytes()
    path.write_bytes(shorter[:-64] + whole[-64:])
    with pytest.raises(BadExport, match="does not fit"):
        read(path)


def test_a_length_beyond_the_file_reserves_no_memory(tmp_path):
    from kv_tier.bundle import HEAD, MAGIC, RECORD, VERSION, sealed

    head = sealed(HEAD.pack(MAGIC, VERSION, 0, 0, bytes(40)))
    record = sealed(RECORD.pack(BLOCK, 256, 2**62, KEY, bytes(8)))
    (tmp_path / "huge").write_bytes(head + record + bytes(1000))
    with pytest.raises(BadExport, match="too early"):
        read(tmp_path / "huge")


def test_another_version_is_named(tmp_path):
    from kv_tier.bundle import HEAD, MAGIC, sealed

    (tmp_path / "new").write_bytes(sealed(HEAD.pack(MAGIC, 7, 0, 0, bytes(40))))
    with pytest.raises(BadExport, match="version 7"):
        read(tmp_path / "new")


def test_a_payload_that_changed_after_it_was_checked_is_refused(path):
    reader = Reader(path)
    block = next(record for record in reader.verified() if record.type == BLOCK)
    with path.open("r+b") as file:
        file.seek(block.offset)
        file.write(b"X")
    with pytest.raises(BadExport, match="damaged"):
        reader.payload(block)
    reader.close()
