"""Manifests: what is committed is read, in every version; what is damaged is refused."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_tier.format import (
    MESSAGES,
    TOKENS,
    WORDS,
    CorruptFile,
    NewerVersion,
    decode_records,
    encode_records,
    with_sum,
)
from kv_tier.manifest import Checkpoint, Manifest, Message, decode_manifest, encode_manifest

HERE = Path("a.manifest")
GOLDEN = Path(__file__).parents[1] / "golden" / "session_v1.manifest"

# what the golden file holds; it was recorded once, by the build that knew version 1 only
KEYS = [bytes([n]) * 32 for n in range(1, 5)]
EXAMPLE = Manifest(
    tenant="acme",
    session_id="order-17_b",
    generation=12,
    fence=7,
    fingerprint=bytes(range(32)),
    model="SmolLM2-135M-Instruct",
    weights_digest="00112233445566778899aabbccddeeff",
    arithmetic_version="3",
    created_ms=1_790_000_000_000,
    used_ms=1_790_000_360_000,
    token_ids=tuple(range(1000, 1520)),
    messages=(
        Message("system", "Du bist höflich. 你好"),
        Message("user", "half a pair: \ud83d"),
        Message("assistant", "Hello 👋", 500, 519),
    ),
    num_kv=519,
    blocks=(KEYS[0], KEYS[1]),
    tail=KEYS[2],
    checkpoints=(Checkpoint(256, KEYS[0]), Checkpoint(519, KEYS[3])),
    last_request="standard-1790000000000-0",
    digest="0123456789abcdef",
    forked_from="order-17",
)
SMALL = replace(EXAMPLE, token_ids=(1, 2, 3), messages=(), num_kv=0, blocks=(), tail=None)
SMALL = replace(SMALL, checkpoints=())

keys = st.binary(min_size=32, max_size=32)
texts = st.text(st.characters(), max_size=40)
numbers = st.integers(1, (1 << 63) - 1)


@st.composite
def manifests(draw):
    token_ids = tuple(draw(st.lists(st.integers(0, (1 << 31) - 1), max_size=700)))
    position = st.integers(0, len(token_ids))
    spans = [sorted((draw(position), draw(position))) for _ in range(draw(st.integers(0, 4)))]
    num_kv = draw(position)
    checkpoints = [Checkpoint(p, draw(keys)) for p in {draw(position)} if p]
    return Manifest(
        tenant=draw(st.from_regex(r"[a-z0-9]{1,32}", fullmatch=True)),
        session_id=draw(st.from_regex(r"[A-Za-z0-9_]{1,64}", fullmatch=True)),
        generation=draw(numbers),
        fence=draw(numbers),
        fingerprint=draw(keys),
        model=draw(texts),
        weights_digest=draw(texts),
        arithmetic_version=draw(texts),
        created_ms=draw(numbers),
        used_ms=draw(numbers),
        token_ids=token_ids,
        messages=tuple(Message(draw(texts), draw(texts), *span) for span in spans),
        num_kv=num_kv,
        blocks=tuple(draw(keys) for _ in range(num_kv // 256)),
        tail=draw(keys) if num_kv % 256 else None,
        checkpoints=tuple(checkpoints),
        last_request=draw(texts),
        digest=draw(texts),
        forked_from=draw(texts),
    )


@given(manifests())
def test_what_is_written_is_read(manifest):
    assert manifest == decode_manifest(encode_manifest(manifest), HERE)


def test_a_manifest_of_version_1_is_readable():
    """A golden file: whatever the format becomes, this stays readable."""
    assert decode_manifest(GOLDEN.read_bytes(), GOLDEN) == EXAMPLE


def test_version_1_is_what_is_written():
    assert GOLDEN.read_bytes() == encode_manifest(EXAMPLE)


def test_every_truncation_is_detected():
    whole = encode_manifest(EXAMPLE)
    for length in range(len(whole)):
        with pytest.raises(CorruptFile):
            decode_manifest(whole[:length], HERE)
    with pytest.raises(CorruptFile):
        decode_manifest(whole + b"\0", HERE)


def test_every_flipped_bit_is_detected():
    whole = encode_manifest(SMALL)
    for bit in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptFile) as error:
            decode_manifest(bytes(damaged), HERE)
        assert type(error.value) is CorruptFile  # a damaged version is damage, not news


def test_a_newer_version_is_refused_by_its_number():
    whole = bytearray(encode_manifest(EXAMPLE))
    whole[8] = 2
    with pytest.raises(NewerVersion, match="format version 2; this build reads up to 1"):
        decode_manifest(with_sum(bytes(whole[:-16])), HERE)


def test_a_record_of_a_type_we_do_not_know_is_passed_over():
    head, records = decode_records(encode_manifest(EXAMPLE), HERE)
    more = encode_records(head, [(99, b"of a later build"), *records.items()])
    assert decode_manifest(more, HERE) == EXAMPLE


@pytest.mark.parametrize(
    "changed",
    [
        {TOKENS: b"123"},
        {TOKENS: bytes(4 * 519)},
        {TOKENS: b""},
        {MESSAGES: b"\xc1"},
        {MESSAGES: b"\x91\x01"},
        {MESSAGES: b"\x91\x94\x01\x02\x03\x04"},
        {MESSAGES: b"\x80"},
        {WORDS: b"\x80"},
        {WORDS: b"\x90"},
        {2: b"short"},
        {2: bytes(32)},
        {3: bytes(31)},
        {4: bytes(39)},
        {4: bytes(40)},
    ],
)
def test_a_record_that_makes_no_sense_is_damage_whatever_its_checksum_says(changed):
    """Who may hand in a file may also compute its checksum."""
    head, records = decode_records(encode_manifest(EXAMPLE), HERE)
    with pytest.raises(CorruptFile):
        decode_manifest(encode_records(head, [*(records | changed).items()]), HERE)


@given(st.lists(st.tuples(st.integers(0, 7), st.binary(max_size=60)), max_size=6))
def test_a_made_up_body_is_damage_and_nothing_else(records):
    head, _ = decode_records(encode_manifest(EXAMPLE), HERE)
    with pytest.raises(CorruptFile):
        decode_manifest(encode_records(head, records), HERE)


@given(st.binary(max_size=400))
def test_a_made_up_body_that_is_no_record_is_damage_and_nothing_else(body):
    head = bytearray(encode_manifest(EXAMPLE)[:256])
    head[16:24] = (256 + len(body) + 16).to_bytes(8, "little")
    with pytest.raises(CorruptFile):
        decode_manifest(with_sum(bytes(head) + body), HERE)


@pytest.mark.parametrize(
    "change",
    [
        {"tenant": "../acme"},
        {"session_id": "a--b"},
        {"generation": 0},
        {"fence": 0},
        {"num_kv": 521},
        {"num_kv": 512},
        {"tail": None},
        {"blocks": (KEYS[0],)},
        {"blocks": (KEYS[0], b"short")},
        {"fingerprint": b""},
        {"checkpoints": (Checkpoint(521, KEYS[0]),)},
        {"checkpoints": (Checkpoint(0, KEYS[0]),)},
        {"messages": (Message("assistant", "", 5, 4),)},
        {"messages": (Message("assistant", "", 5, 521),)},
    ],
)
def test_what_makes_no_sense_is_not_written(change):
    with pytest.raises(AssertionError):
        encode_manifest(replace(EXAMPLE, **change))
