"""The bytes of the tier's files: FORMAT.md is the law, and these are its names."""

import re
import struct
import sys
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import xxhash

Kind = Literal["block", "tail", "state"]
KINDS: Final[tuple[Kind, ...]] = ("block", "tail", "state")  # 1, 2, 3 in a header

BLOCK_TOKENS: Final = 256
KEY_BYTES: Final = 32
NO_KEY: Final = bytes(KEY_BYTES)
SUM_BYTES: Final = 16  # xxh3-128, most significant byte first
PAGE_BYTES: Final = 4096
PIECE_BYTES: Final = 1 << 20  # of payload under one checksum

TENANT: Final = re.compile(r"[a-z0-9]{1,32}")
SESSION_ID: Final = re.compile(r"(?!.*--)[A-Za-z0-9_-]{1,64}")

OBJECT_MAGIC: Final = b"LOCKOBJ\n"
OBJECT_VERSION: Final = 1
# magic, version, kind, header_bytes, num_tokens, payload_bytes, key, parent, fingerprint, tenant,
# reserved
OBJECT_HEAD: Final = struct.Struct("<8sHHIQQ32s32s32s32s80x")

MANIFEST_MAGIC: Final = b"LOCKMAN\n"
MANIFEST_VERSION: Final = 1
# magic, version, reserved, head_bytes, file_bytes, generation, fence, created_ms, used_ms,
# num_tokens, num_kv, fingerprint, tenant, session_id, reserved
MANIFEST_HEAD: Final = struct.Struct("<8sH2xIQQQQQII32s32s64s64x")
RECORD_HEAD: Final = struct.Struct("<II")  # type, length
RECORD_ALIGNMENT: Final = 8
CHECKPOINT: Final = struct.Struct("<Q32s")  # position, key
TOKENS, BLOCKS, TAIL, CHECKPOINTS, MESSAGES, WORDS = 1, 2, 3, 4, 5, 6
RECORD_TYPES: Final = (TOKENS, BLOCKS, TAIL, CHECKPOINTS, MESSAGES, WORDS)

assert OBJECT_HEAD.size == 240 and MANIFEST_HEAD.size == 256, "FORMAT.md's tables"
assert sys.byteorder == "little" and array("i").itemsize == 4, "token ids are int32"


class CorruptFile(Exception):
    """A file that is not what it should be. Nothing of it may be used."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class NewerVersion(CorruptFile):
    """A sound file of a format version that this build does not know."""

    def __init__(self, path: Path, version: int, known: int) -> None:
        super().__init__(path, f"format version {version}; this build reads up to {known}")
        self.version = version


def is_tenant(name: str) -> bool:
    """A name, not a path: it may become a folder."""
    return TENANT.fullmatch(name) is not None


def is_session_id(name: str) -> bool:
    """A name, not a path: it may become a folder."""
    return SESSION_ID.fullmatch(name) is not None


def token_bytes(token_ids: Sequence[int]) -> bytes:
    """int32, little-endian. Raises OverflowError for what is no token id."""
    return array("i", token_ids).tobytes()


# --- objects ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ObjectHeader:
    """What an object says of itself.

    num_tokens     256 of a block, 1 to 255 of a tail, the position of a state
    payload_bytes  without the zeros that fill its last page
    parent         key of what comes before it, or NO_KEY
    """

    kind: Kind
    num_tokens: int
    payload_bytes: int
    key: bytes
    parent: bytes
    fingerprint: bytes
    tenant: str


def padded_bytes(payload_bytes: int) -> int:
    """The payload and the zeros up to the end of its last page: what the checksums cover."""
    return -(-payload_bytes // PAGE_BYTES) * PAGE_BYTES


def header_bytes(payload_bytes: int) -> int:
    """Where the payload of an object begins: a multiple of 4096, one page up to 240 MiB."""
    num_pieces = -(-padded_bytes(payload_bytes) // PIECE_BYTES)
    return padded_bytes(OBJECT_HEAD.size + SUM_BYTES * (num_pieces + 1))


def file_bytes(payload_bytes: int) -> int:
    """What a file of this payload takes on disk: header and whole pages."""
    return header_bytes(payload_bytes) + padded_bytes(payload_bytes)


def can_hold(kind: Kind, num_tokens: int) -> bool:
    """Whether an object of this kind can be of so many tokens."""
    if kind == "block":
        return num_tokens == BLOCK_TOKENS
    return 1 <= num_tokens < (BLOCK_TOKENS if kind == "tail" else 1 << 32)


def encode_header(header: ObjectHeader, sums: Sequence[bytes]) -> bytes:
    """The pages before the payload. sums: of each MiB of the padded payload."""
    assert can_hold(header.kind, header.num_tokens), header
    assert header.payload_bytes > 0 and is_tenant(header.tenant), header
    assert len(header.key) == len(header.parent) == len(header.fingerprint) == KEY_BYTES, header
    assert len(sums) == -(-padded_bytes(header.payload_bytes) // PIECE_BYTES), len(sums)
    num_bytes = header_bytes(header.payload_bytes)
    head = OBJECT_HEAD.pack(
        OBJECT_MAGIC,
        OBJECT_VERSION,
        KINDS.index(header.kind) + 1,
        num_bytes,
        header.num_tokens,
        header.payload_bytes,
        header.key,
        header.parent,
        header.fingerprint,
        header.tenant.encode(),
    )
    table = b"".join(sums)
    return with_sum((head + table).ljust(num_bytes - SUM_BYTES, b"\0"))


def announced_header_bytes(first_page: bytes, path: Path) -> int:
    """How many bytes to read for decode_header; believed only when its checksum agrees.

    Raises CorruptFile.
    """
    if len(first_page) < PAGE_BYTES or first_page[:8] != OBJECT_MAGIC:
        raise CorruptFile(path, "not an object of ours, or cut short")
    (_, _, _, num_bytes, *_) = OBJECT_HEAD.unpack_from(first_page)
    if num_bytes % PAGE_BYTES or not PAGE_BYTES <= num_bytes <= PIECE_BYTES:
        raise CorruptFile(path, f"a header of {num_bytes} bytes")
    return int(num_bytes)


def decode_header(data: bytes, path: Path) -> tuple[ObjectHeader, list[bytes]]:
    """The header and the checksum of each piece. data: the pages before the payload.

    Raises CorruptFile, NewerVersion.
    """
    if len(data) < OBJECT_HEAD.size + SUM_BYTES:
        raise CorruptFile(path, f"a header of {len(data)} bytes")
    _check_sum(data, path, "header")
    (_, version, kind, num_bytes, num_tokens, payload_bytes, key, parent, fingerprint, tenant) = (
        OBJECT_HEAD.unpack_from(data)
    )
    if version > OBJECT_VERSION:
        raise NewerVersion(path, version, OBJECT_VERSION)
    if version == 0 or not 1 <= kind <= len(KINDS) or not can_hold(KINDS[kind - 1], num_tokens):
        raise CorruptFile(path, f"version {version}, kind {kind}, {num_tokens} tokens")
    if payload_bytes == 0 or num_bytes != header_bytes(payload_bytes) or num_bytes != len(data):
        raise CorruptFile(path, f"{payload_bytes} bytes of payload from byte {num_bytes} on")
    name = _text(tenant, path)
    if not is_tenant(name):
        raise CorruptFile(path, f"tenant {name!r}")
    num_pieces = -(-padded_bytes(payload_bytes) // PIECE_BYTES)
    begin = OBJECT_HEAD.size
    sums = [data[begin + SUM_BYTES * i :][:SUM_BYTES] for i in range(num_pieces)]
    kind_name = KINDS[kind - 1]
    return ObjectHeader(kind_name, num_tokens, payload_bytes, key, parent, fingerprint, name), sums


# --- manifests ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ManifestHead:
    """The fixed part of a manifest; what the fields mean says manifest.Manifest."""

    generation: int
    fence: int
    created_ms: int
    used_ms: int
    num_tokens: int
    num_kv: int
    fingerprint: bytes
    tenant: str
    session_id: str


def encode_records(head: ManifestHead, records: Sequence[tuple[int, bytes]]) -> bytes:
    """A manifest's file: head, records (type, payload) in this order, checksum."""
    body = b"".join(_record(record_type, payload) for record_type, payload in records)
    fixed = MANIFEST_HEAD.pack(
        MANIFEST_MAGIC,
        MANIFEST_VERSION,
        MANIFEST_HEAD.size,
        MANIFEST_HEAD.size + len(body) + SUM_BYTES,
        head.generation,
        head.fence,
        head.created_ms,
        head.used_ms,
        head.num_tokens,
        head.num_kv,
        head.fingerprint,
        head.tenant.encode(),
        head.session_id.encode(),
    )
    return with_sum(fixed + body)


def decode_records(data: bytes, path: Path) -> tuple[ManifestHead, dict[int, bytes]]:
    """The head, and each record's payload by its type; unknown types are passed over.

    Raises CorruptFile, NewerVersion.
    """
    if len(data) < MANIFEST_HEAD.size + SUM_BYTES or data[:8] != MANIFEST_MAGIC:
        raise CorruptFile(path, "not a manifest of ours, or cut short")
    _check_sum(data, path, "manifest")
    _, version, head_bytes, file_bytes, *fields = MANIFEST_HEAD.unpack_from(data)
    if version > MANIFEST_VERSION:
        raise NewerVersion(path, version, MANIFEST_VERSION)
    if version == 0 or head_bytes != MANIFEST_HEAD.size or file_bytes != len(data):
        raise CorruptFile(path, f"version {version}, {file_bytes} bytes said, {len(data)} there")
    head = _manifest_head(fields, path)
    records: dict[int, bytes] = {}
    for record_type, payload in _records(data[MANIFEST_HEAD.size : -SUM_BYTES], path):
        if record_type in records:
            raise CorruptFile(path, f"two records of type {record_type}")
        if record_type in RECORD_TYPES:
            records[record_type] = payload
    return head, records


def _manifest_head(fields: list[Any], path: Path) -> ManifestHead:
    *numbers, fingerprint, tenant, session_id = fields
    generation, fence, created_ms, used_ms, num_tokens, num_kv = numbers
    names = _text(tenant, path), _text(session_id, path)
    if not is_tenant(names[0]) or not is_session_id(names[1]):
        raise CorruptFile(path, f"of {names[0]!r}, {names[1]!r}")
    return ManifestHead(
        generation, fence, created_ms, used_ms, num_tokens, num_kv, fingerprint, *names
    )


def _record(record_type: int, payload: bytes) -> bytes:
    padding = bytes(-len(payload) % RECORD_ALIGNMENT)
    return RECORD_HEAD.pack(record_type, len(payload)) + payload + padding


def _records(body: bytes, path: Path) -> Iterator[tuple[int, bytes]]:
    begin = 0
    while begin < len(body):
        if begin + RECORD_HEAD.size > len(body):
            raise CorruptFile(path, "a record's head is cut short")
        record_type, length = RECORD_HEAD.unpack_from(body, begin)
        begin += RECORD_HEAD.size
        if begin + length + (-length % RECORD_ALIGNMENT) > len(body):
            raise CorruptFile(path, f"a record of type {record_type} is cut short")
        yield record_type, body[begin : begin + length]
        begin += length + (-length % RECORD_ALIGNMENT)


# --- both ---------------------------------------------------------------------------------------


def with_sum(data: bytes) -> bytes:
    """The data and its checksum: how every header and every manifest ends."""
    return data + xxhash.xxh3_128_digest(data)


def _check_sum(data: bytes, path: Path, what: str) -> None:
    """The last 16 bytes are the checksum of all before them: in every version of both formats."""
    if xxhash.xxh3_128_digest(memoryview(data)[:-SUM_BYTES]) != data[-SUM_BYTES:]:
        raise CorruptFile(path, f"the {what} is not what was written")


def _text(field: bytes, path: Path) -> str:
    """ASCII, filled with zeros."""
    try:
        return field.rstrip(b"\0").decode("ascii")
    except UnicodeDecodeError as error:
        raise CorruptFile(path, f"{field!r} is no name") from error
