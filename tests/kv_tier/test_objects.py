"""Objects: what is written is read; what is not whole, or not the right one, is never served."""

import errno
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kv_tier.files import DiskError, OsFiles
from kv_tier.format import PAGE_BYTES, PIECE_BYTES, CorruptFile, NewerVersion, file_bytes, with_sum
from kv_tier.objects import Elsewhere, ObjectStore, Source
from kv_tier.open_object import POPULATE_BYTES, Missing, open_file
from tests.kv_tier.faulty_files import FaultyFiles, ShortFiles, fails

KEY, OTHER_KEY = bytes(range(32)), bytes(range(1, 33))
FINGERPRINT, TENANT = bytes(range(100, 132)), "acme"


def source(payload: bytes, kind="state", key=KEY, num_tokens=256) -> Source:
    return Source(key, kind, num_tokens, (payload,), FINGERPRINT, TENANT)


def read(store: ObjectStore, payload_bytes: int, kind="state", key=KEY) -> bytes:
    with closing(store.open(kind, key, FINGERPRINT, payload_bytes)) as opened:
        opened.verify()
        return bytes(opened.view())


@given(
    sizes=st.lists(st.integers(0, 5000), min_size=1, max_size=4).filter(any),
    most=st.sampled_from([1 << 30, 4096, 1000]),
)
@settings(max_examples=25)
def test_the_bytes_of_all_parts_come_back_in_order(tmp_path_factory, sizes, most):
    parts = tuple(np.random.default_rng(size).integers(0, 256, size, np.uint8) for size in sizes)
    store = ObjectStore(tmp_path_factory.mktemp("kv"), ShortFiles(most))
    written = store.write(Source(KEY, "tail", 7, parts, FINGERPRINT, TENANT))
    payload = b"".join(part.tobytes() for part in parts)
    assert payload == read(store, len(payload), "tail")
    assert written == store.path("tail", KEY).stat().st_size == file_bytes(len(payload))


@pytest.mark.parametrize("extra", [-1, 0, 1, 4095, 4096])
def test_a_payload_that_ends_near_a_checksum_comes_back(tmp_path, extra):
    payload = np.random.default_rng(0).bytes(2 * PIECE_BYTES + extra)
    store = ObjectStore(tmp_path)
    parts = (payload[:700], payload[700 : PIECE_BYTES + 13], payload[PIECE_BYTES + 13 :])
    store.write(Source(KEY, "state", 1000, parts, FINGERPRINT, TENANT))
    assert payload == read(store, len(payload))


def test_arrays_of_any_shape_are_written_as_they_lie(tmp_path):
    array = np.arange(24, dtype=np.float16).reshape(2, 3, 4)
    store = ObjectStore(tmp_path)
    store.write(Source(KEY, "block", 256, (array,), FINGERPRINT, TENANT))
    assert array.tobytes() == read(store, array.nbytes, "block")


def test_a_part_that_lies_elsewhere_is_fetched_once_and_only_if_it_is_written(tmp_path):
    store, fetched = ObjectStore(tmp_path), []
    part = Elsewhere(6, lambda: fetched.append("once") or b"device")
    source = Source(KEY, "tail", 9, (b"host, ", part), FINGERPRINT, TENANT)
    assert (source.payload_bytes, fetched) == (12, [])
    assert store.write(source) > 0 and store.write(source) == 0
    assert fetched == ["once"]
    assert read(store, 12, "tail") == b"host, device"


def test_a_header_takes_as_many_pages_as_its_checksums_need(tmp_path):
    payload = bytes(241 << 20)
    store = ObjectStore(tmp_path)
    assert store.write(source(payload)) == 2 * PAGE_BYTES + len(payload)
    with closing(store.open("state", KEY, FINGERPRINT, len(payload))) as opened:
        assert opened.payload_offset == 2 * PAGE_BYTES
        opened.verify()


def test_an_object_says_what_it_is(tmp_path):
    store = ObjectStore(tmp_path)
    store.write(Source(KEY, "tail", 44, (b"abc",), FINGERPRINT, TENANT, parent=OTHER_KEY))
    with closing(open_file(store.path("tail", KEY))) as opened:
        assert (opened.kind, opened.num_tokens, opened.key) == ("tail", 44, KEY)
        assert (opened.tenant, opened.fingerprint) == (TENANT, FINGERPRINT)
        assert (opened.parent, opened.payload_bytes) == (OTHER_KEY, 3)


def test_an_object_that_is_there_is_not_written_again(tmp_path):
    store = ObjectStore(tmp_path)
    assert store.write(source(b"first")) > 0
    assert store.write(source(b"other")) == 0
    assert read(store, 5) == b"first"


def test_its_files_are_for_their_owner_alone(tmp_path):
    store = ObjectStore(tmp_path / "kv")
    store.write(source(b"secret"))
    path = store.path("state", KEY)
    assert path.stat().st_mode & 0o777 == 0o600
    assert {p.stat().st_mode & 0o777 for p in (path.parent, path.parent.parent)} == {0o700}


def test_every_truncation_is_detected(scratch):
    store = ObjectStore(scratch)
    payload = np.random.default_rng(1).bytes(5000)
    store.write(source(payload))
    path = store.path("state", KEY)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(CorruptFile):
            read(store, len(payload))
    for longer in (whole + b"\0", whole + bytes(PAGE_BYTES)):
        path.write_bytes(longer)
        with pytest.raises(CorruptFile):
            read(store, len(payload))


def test_every_flipped_byte_is_detected(scratch):
    """Header, checksums, payload, and the zeros that fill both pages."""
    store = ObjectStore(scratch)
    payload = np.random.default_rng(1).bytes(5000)
    store.write(source(payload))
    path = store.path("state", KEY)
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << at % 8)]) + whole[at + 1 :])
        with pytest.raises(CorruptFile):
            read(store, len(payload))


@pytest.mark.parametrize(
    ("fingerprint", "payload_bytes"), [(bytes(32), 7), (FINGERPRINT, 6), (FINGERPRINT, 4096)]
)
def test_an_object_of_other_weights_or_another_shape_is_refused(
    tmp_path, fingerprint, payload_bytes
):
    store = ObjectStore(tmp_path)
    store.write(source(b"payload"))
    with pytest.raises(CorruptFile):
        store.open("state", KEY, fingerprint, payload_bytes)


def test_an_object_under_anothers_name_is_refused(tmp_path):
    store = ObjectStore(tmp_path)
    store.write(source(b"payload"))
    path = store.path("state", KEY)
    for kind, key in (("state", OTHER_KEY), ("block", KEY)):
        wrong = store.path(kind, key)
        wrong.parent.mkdir(exist_ok=True)
        wrong.write_bytes(path.read_bytes())
        with pytest.raises(CorruptFile, match="another's name"):
            store.open(kind, key, FINGERPRINT, 7)


def test_a_newer_version_is_refused_by_its_number(tmp_path):
    store = ObjectStore(tmp_path)
    store.write(source(b"payload"))
    path = store.path("state", KEY)
    whole = bytearray(path.read_bytes())
    whole[8] = 2
    path.write_bytes(with_sum(bytes(whole[: PAGE_BYTES - 16])) + whole[PAGE_BYTES:])
    with pytest.raises(NewerVersion, match="format version 2"):
        store.open("state", KEY, FINGERPRINT, 7)


def test_what_is_not_there_is_missing(tmp_path):
    store = ObjectStore(tmp_path)
    with pytest.raises(Missing):
        store.open("block", KEY, FINGERPRINT, 7)
    assert not store.has("block", KEY)
    assert store.drop("block", KEY) == 0
    assert list(store.walk()) == []
    store.prefetch("block", KEY)


def test_a_symbolic_link_is_not_followed(tmp_path):
    store = ObjectStore(tmp_path)
    path = store.path("block", KEY)
    path.parent.mkdir(parents=True)
    path.symlink_to("/etc/passwd")
    with pytest.raises(DiskError):
        store.open("block", KEY, FINGERPRINT, 7)


def test_what_was_verified_is_mapped_once(tmp_path):
    ObjectStore(tmp_path).write(source(b"payload"))
    with closing(ObjectStore(tmp_path).open("state", KEY, FINGERPRINT, 7)) as opened:
        assert opened.address is None
        opened.verify()
        assert opened.address == opened.view().ctypes.data == opened.view().ctypes.data


def test_pages_that_cannot_be_read_are_an_error_and_no_signal(tmp_path):
    ObjectStore(tmp_path).write(source(bytes(POPULATE_BYTES + 1)))
    files = FaultyFiles(at=4, fault=fails(errno.EIO))  # open, pread, then the pages, in two parts
    opened = ObjectStore(tmp_path, files).open("state", KEY, FINGERPRINT, POPULATE_BYTES + 1)
    with closing(opened), pytest.raises(DiskError, match="Input/output error"):
        opened.verify()
    assert files.done == ["open", "pread", "populate", "populate"]


def test_a_dropped_object_stays_with_whoever_reads_it(tmp_path):
    store = ObjectStore(tmp_path)
    num_bytes = store.write(source(b"payload"))
    with closing(store.open("state", KEY, FINGERPRINT, 7)) as opened:
        assert store.drop("state", KEY) == num_bytes
        opened.verify()
        view = opened.view()
    assert bytes(view) == b"payload"
    assert not store.has("state", KEY)


def test_a_view_cannot_be_written_through(tmp_path):
    store = ObjectStore(tmp_path)
    store.write(source(b"payload"))
    with closing(store.open("state", KEY, FINGERPRINT, 7)) as opened:
        assert not opened.view().flags.writeable


def test_walk_finds_objects_and_nothing_else(tmp_path):
    store = ObjectStore(tmp_path)
    sizes = {kind: store.write(source(b"x", kind, num_tokens=n)) for kind, n in KINDS}
    folder = store.path("block", KEY).parent
    (folder / ".tmp-1234").write_bytes(b"unfinished")
    (folder / "notes.txt").write_bytes(b"somebody's")
    found = {(kind, key): num_bytes for kind, key, num_bytes, _ in store.walk()}
    assert found == {(kind, KEY): size for kind, size in sizes.items()}
    assert all(abs(ms - folder.stat().st_mtime * 1000) < 60_000 for *_, ms in store.walk())


KINDS = (("block", 256), ("tail", 1), ("state", 4000))


def test_sweep_takes_old_temporary_files_only(tmp_path):
    store = ObjectStore(tmp_path)
    store.write(source(b"x"))
    unfinished = store.path("state", KEY).parent / ".tmp-1234"
    unfinished.write_bytes(b"unfinished")
    assert store.sweep(before_ms=1000) == 0
    assert unfinished.exists()
    assert store.sweep(before_ms=1 << 42) == 1
    assert not unfinished.exists() and store.has("state", KEY)


def test_sync_makes_names_durable_also_of_what_was_there(tmp_path):
    """Another process may have been killed between its rename and its sync."""
    ObjectStore(tmp_path).write(source(b"x"))
    files = FaultyFiles()
    store = ObjectStore(tmp_path, files)
    assert store.write(source(b"x")) == 0
    store.sync()
    assert files.done == ["sync_folder"]
    store.sync()
    assert files.done == ["sync_folder"]


def test_a_sync_that_failed_is_done_again(tmp_path):
    store = ObjectStore(tmp_path, files := FaultyFiles())
    store.write(source(b"x"))
    files.at, files.fault = files.count + 1, fails(errno.EIO)
    with pytest.raises(DiskError):
        store.sync()
    store.sync()
    assert files.done[-2:] == ["sync_folder", "sync_folder"]


def test_pages_of_what_is_not_read_soon_are_dropped_from_ram(tmp_path):
    store = ObjectStore(tmp_path, files := FaultyFiles())
    store.write(source(b"x"), drop_cache=True)
    assert files.done[-3:] == ["sync", "forget_pages", "rename"]


def test_bytes_that_change_while_they_are_written_are_found_out(tmp_path):
    class Racing(OsFiles):
        def perform(self, path: Path, operation, *args, **named):
            if operation.__name__ == "write":
                payload[0] ^= 1
            return super().perform(path, operation, *args, **named)

    payload = bytearray(b"a block that somebody still writes to")
    store = ObjectStore(tmp_path, Racing())
    store.write(Source(KEY, "block", 256, (payload,), FINGERPRINT, TENANT))
    with pytest.raises(CorruptFile, match="not what was written"):
        read(store, len(payload), "block")
