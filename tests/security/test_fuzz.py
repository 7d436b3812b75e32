"""Whatever lies in Redis or on the disk: refused in words, or read as what it is; never more.

A small helping in make test; `make fuzz INPUTS=100000` gives each test so many inputs: those that
hypothesis draws, and damaged variants of each of them. README.md beside this has the figures of the
last such run. GGUF files: tests/workers/model/test_fuzz.py; the HTTP API: fuzz_api.py.
"""

import contextlib
import os
import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgpack
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ingest.access.keys import Key, _parsed
from ingest.jobs.unread import names_of
from kv_tier.bundle import HEAD, MAGIC, RECORD, BadExport, sealed
from kv_tier.carried import Node
from kv_tier.dump import describe
from kv_tier.export import export_session
from kv_tier.format import MANIFEST_HEAD, SUM_BYTES, CorruptFile, decode_header, with_sum
from kv_tier.importing import CannotImport, import_session
from kv_tier.manifest import Manifest, decode_manifest, encode_manifest
from kv_tier.sessions import BadName
from router.admit import Reject, admit, reject_entry
from router.entry import read_entry
from router.refusal import Refused
from tests.ingest.kept_sessions import NODE, keep, paths_of, tier_at
from tests.router.conftest import door, text, text_home
from tests.router.test_admit_fuzz import GARBAGE, OF_A_SESSION, PLAUSIBLE
from workers.wire import EndEvent, Request, TokenEvent
from workers.wire_fields import parse_entry, parse_session

__all__ = ["door", "text", "text_home"]
INPUTS = int(os.environ.get("FUZZ_INPUTS", "80"))
VARIANTS = 50 if INPUTS >= 1000 else 4  # of each input that hypothesis draws, itself among them
ENTRY = "1799999999000-3"
HERE = Path("a-file")
given_many = settings(
    max_examples=INPUTS // VARIANTS,
    suppress_health_check=list(HealthCheck),
    derandomize=INPUTS < 1000,
)
# one to four wrong things: (where, as a share of the length; what; by which byte or number)
WRONGS = st.lists(
    st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 5), st.integers(0, 2**64 - 1)),
    max_size=4,
)


SEEDS = st.integers(0, 2**32)


def damaged(whole: bytes, wrongs) -> bytes:
    data = bytearray(whole)
    for share, kind, value in wrongs:
        at = int(share * len(data))
        if kind == 0:
            data[at : at + 1] = bytes([value % 256])
        elif kind == 1:
            data[at : at + 4] = struct.pack("<I", value % 2**32)
        elif kind == 2:
            data[at : at + 8] = struct.pack("<Q", value)
        elif kind == 3:
            del data[at : at + value % 40]
        elif kind == 4:
            data[at:at] = data[at : at + value % 40]
        else:
            del data[at:]
    return bytes(data)


def variants(whole: bytes, seed: int) -> Iterator[bytes]:
    """The bytes, and as many damaged in other ways."""
    draw = random.Random(seed)
    yield whole
    for _ in range(VARIANTS - 1):
        count = draw.choice((1, 1, 2, 4))
        wrongs = [(draw.random(), draw.randrange(6), draw.getrandbits(64)) for _ in range(count)]
        yield damaged(whole, wrongs)


def packed(value) -> bytes:
    """msgpack as a client in Python may write it; what it cannot say is left as its text."""
    try:
        return bytes(msgpack.packb(value, unicode_errors="surrogatepass"))
    except (ValueError, TypeError, OverflowError):
        return repr(value).encode("utf-8", "replace")


BODIES = st.one_of(
    st.binary(max_size=60),
    st.builds(damaged, (GARBAGE | PLAUSIBLE | OF_A_SESSION).map(packed), WRONGS),
)
PLAIN = st.dictionaries(
    st.sampled_from([b"prompt", b"messages", b"id", b"tenant", b"max_tokens", b"stop", b"webhook"])
    | st.binary(max_size=12),
    st.binary(max_size=40) | st.sampled_from([b"1", b"[", b'{"a":', b"\xff", b"x" * 99]),
    max_size=6,
)
ENTRIES = st.one_of(BODIES.map(lambda body: {b"m": body}), PLAIN)


@given_many
@given(entry=ENTRIES, seed=SEEDS)
def test_a_message_of_a_stream_is_a_request_or_is_refused(door, entry, seed):
    """As the router takes it: a decoder that raised would stop the whole stream."""
    name = next(iter(entry), b"m")
    for value in variants(entry.get(name, b""), seed):
        take(door, {**entry, name: value})


def take(door, entry):
    assert len(names_of(entry)) == 2
    try:
        fields, plain = read_entry(entry)
    except Refused as refused:
        reject = reject_entry(refused, sla="batch", entry_id=ENTRY)
        assert reject.request_id == f"batch-{ENTRY}" and reject.reason
        return
    told = admit(fields, door, sla="batch", entry_id=ENTRY, plain=plain)
    assert isinstance(told, (Request, Reject))
    if isinstance(told, Reject):
        told.reason.encode()
        assert told.field and told.code and told.request_id


def test_a_header_that_is_cut_short_and_sealed_again_is_no_header():
    """Found by the test below: struct.error."""
    with pytest.raises(CorruptFile):
        decode_header(with_sum(b"LOCKOBJ"), HERE)


EVENTS = st.dictionaries(
    st.sampled_from(
        [b"token", b"text", b"digest", b"logprobs", b"status", b"metadata", b"ttft_ms", b"sla"]
    )
    | st.binary(max_size=6),
    st.binary(max_size=20)
    | st.sampled_from(
        [b"1", b"[[1,-0.5]]", b"[[Infinity, 0]]", b"[1]", b"finished", b"nan", b"inf"]
    ),
    max_size=8,
)


@given_many
@given(entry_id=st.sampled_from(["0-1", "1-0", "7-7", "0-x"]), fields=EVENTS, seed=SEEDS)
def test_an_entry_of_a_token_stream_is_an_event_or_no_event(entry_id, fields, seed):
    """ValueError is what readers take for "not from a pool"; another one would stop them all."""
    name = next(iter(fields), b"token")
    for value in variants(fields.get(name, b""), seed):
        with contextlib.suppress(ValueError):
            event = parse_entry(entry_id, {**fields, name: value})
            assert isinstance(event, (TokenEvent, EndEvent))


KEY = msgspec.json.encode(Key(id="shop", tenant="acme", secret_hash="0" * 64))


@given_many
@given(fields=st.dictionaries(st.binary(max_size=8), st.binary(max_size=20)), seed=SEEDS)
def test_hashes_of_sessions_and_keys_are_read_whatever_they_hold(fields, seed):
    assert isinstance(parse_session(fields), dict)
    for raw in variants(KEY, seed):
        assert isinstance(_parsed(raw), (Key, type(None)))


class Kept(NamedTuple):
    """A session on the disk, as bytes of its files."""

    manifest: bytes
    objects: list[bytes]
    export: bytes

    def __repr__(self) -> str:
        return "kept"  # else a failure prints all of it


@pytest.fixture(scope="module")
def kept(tmp_path_factory) -> Kept:
    home = tmp_path_factory.mktemp("kept")
    tier = tier_at(home)
    manifest = keep(tier, "talk")
    objects = [path.read_bytes() for path in paths_of(tier, manifest)]
    export_session(tier, "default", "talk", home / "talk.session")
    tier.close()
    return Kept(encode_manifest(manifest), objects, (home / "talk.session").read_bytes())


def resealed(data: bytes) -> bytes:
    """As somebody writes it who knows the format: its checksum is right, its length, too."""
    body = data[:-SUM_BYTES]
    if len(body) >= MANIFEST_HEAD.size:
        (at, size) = (16, len(body) + SUM_BYTES)
        body = body[:at] + struct.pack("<Q", size) + body[at + 8 :]
    return with_sum(body)


@given_many
@given(wrongs=WRONGS, is_sealed=st.booleans(), seed=SEEDS)
def test_a_damaged_manifest_is_refused_or_is_a_manifest(kept, wrongs, is_sealed, seed):
    for data in variants(damaged(kept.manifest, wrongs), seed):
        with contextlib.suppress(CorruptFile):
            manifest = decode_manifest(resealed(data) if is_sealed else data, HERE)
            assert isinstance(manifest, Manifest) and not manifest.fault()
            assert decode_manifest(encode_manifest(manifest), HERE) == manifest


@given_many
@given(number=st.integers(0, 99), wrongs=WRONGS, is_sealed=st.booleans(), seed=SEEDS)
def test_a_damaged_header_of_an_object_is_refused_or_is_one(kept, number, wrongs, is_sealed, seed):
    whole = kept.objects[number % len(kept.objects)]
    for data in variants(damaged(whole[:4096], wrongs), seed):
        sealed_again = with_sum(data[:-SUM_BYTES]) if is_sealed else data
        with contextlib.suppress(CorruptFile):
            header, sums = decode_header(sealed_again, HERE)
            assert header.num_tokens >= 0 and sums


@given_many
@given(wrongs=WRONGS, is_sealed=st.booleans(), number=st.integers(0, 3))
def test_a_damaged_export_is_refused_and_leaves_nothing(
    kept, tmp_path_factory, wrongs, is_sealed, number
):
    """Sealed: the damage is in a record's head, whose checksum is made right again."""
    home = tmp_path_factory.getbasetemp() / "imports"
    home.mkdir(exist_ok=True)
    data = kept.export
    if is_sealed:
        at = HEAD.size + 8
        head = damaged(data[at : at + RECORD.size], wrongs).ljust(RECORD.size, b"\0")[: RECORD.size]
        data = data[:at] + sealed(head) + data[at + RECORD.size + 8 :]
    else:
        data = damaged(data, wrongs)
    (home / "file").write_bytes(data)
    with contextlib.suppress(ValueError, CorruptFile):
        describe(home / "file")
    tier = tier_at(home)
    try:
        with contextlib.suppress(BadExport, CannotImport, BadName):
            import_session(tier, home / "file", "default", f"s{number}", node_of(number))
            assert data == kept.export or tier.sessions.head("default", f"s{number}")
        tier.drop("default", f"s{number}")
    finally:
        tier.close()


def node_of(number: int) -> Node | None:
    return NODE if number else None


def test_the_inputs_are_of_both_kinds(door, kept):
    """The judge of all the above: some damage is found, and what is whole is read."""
    assert isinstance(decode_manifest(kept.manifest, HERE), Manifest)
    with pytest.raises(CorruptFile):
        decode_manifest(damaged(kept.manifest, [(0.5, 0, 7)]), HERE)
    assert kept.export.startswith(MAGIC)
    assert resealed(kept.manifest) == kept.manifest
