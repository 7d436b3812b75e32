"""One session as one file, to be carried elsewhere: the bytes of an export (page: FORMAT.md).

    file   := head record* end
    record := record_head payload:u8[length] sum:u8[16]

Each head and each payload has a checksum, and the end one over all of them: a file that is cut
short, longer than it was, or changed in any byte is refused, never half believed.
"""

import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

import xxhash

MAGIC: Final = b"LSEXPORT"
VERSION: Final = 1
HEAD: Final = struct.Struct("<8sHHI40s")  # magic, version, reserved, reserved, reserved; then a sum
RECORD: Final = struct.Struct("<IIQ32s8s")  # type, num_tokens, length, key, reserved; then a sum
SUM: Final = struct.Struct("<Q")
HEAD_BYTES: Final = 64
SUM_BYTES: Final = 16  # of a payload
PIECE_BYTES: Final = 1 << 20  # read and checked at once

MANIFEST, BLOCK, TAIL, STATE, END = 1, 2, 3, 4, 5
TYPES: Final = (MANIFEST, BLOCK, TAIL, STATE, END)
NO_KEY: Final = bytes(32)

assert HEAD.size + SUM.size == RECORD.size + SUM.size == HEAD_BYTES


class BadExport(Exception):
    """A file that is no export, or no whole one; the reason in words."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Record:
    """Where one part of an export lies.

    type        MANIFEST, BLOCK, TAIL or STATE
    num_tokens  of an object: as its file says
    key         of an object: by which the manifest names it
    offset      of the payload in the file
    length      bytes of the payload
    """

    type: int
    num_tokens: int
    key: bytes
    offset: int
    length: int


class Writer:
    """Appends records to a new file. close() makes it whole."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._all = xxhash.xxh3_128()
        self._num_records = 0
        file.write(sealed(HEAD.pack(MAGIC, VERSION, 0, 0, bytes(40))))

    def add(
        self,
        type_: int,
        payload: Sequence[bytes | memoryview],
        *,
        key: bytes = NO_KEY,
        num_tokens: int = 0,
    ) -> None:
        """payload: buffers of bytes, in order.   Raises OSError."""
        pieces = [memoryview(part).cast("B") for part in payload]
        length = sum(len(piece) for piece in pieces)
        head = sealed(RECORD.pack(type_, num_tokens, length, key, bytes(8)))
        total = xxhash.xxh3_128()
        self._file.write(head)
        for piece in pieces:
            for begin in range(0, len(piece), PIECE_BYTES):
                total.update(piece[begin : begin + PIECE_BYTES])
                self._file.write(piece[begin : begin + PIECE_BYTES])
        self._file.write(total.digest())
        self._all.update(head + total.digest())
        self._num_records += 1

    def close(self) -> None:
        """Write the end and bring all to the disk. The file stays open.   Raises OSError."""
        key = self._all.digest() + bytes(16)
        self._file.write(sealed(RECORD.pack(END, self._num_records, 0, key, bytes(8))))
        self._file.flush()
        os.fsync(self._file.fileno())


class Reader:
    """An export, opened for reading."""

    def __init__(self, path: Path) -> None:
        """Raises BadExport, OSError."""
        self.path = path
        self._file = path.open("rb", buffering=0)
        self.file_bytes = os.fstat(self._file.fileno()).st_size
        head = self._file.read(HEAD_BYTES)
        if head[: len(MAGIC)] != MAGIC:
            self._file.close()
            raise BadExport(path, "is no export of a session")
        version = HEAD.unpack(self._opened(head, HEAD))[1]
        if version != VERSION:
            raise BadExport(path, f"is of version {version}; this node reads {VERSION}")

    def close(self) -> None:
        self._file.close()

    def verified(self) -> Iterator[Record]:
        """Every record, its payload read and checked; ends only when the whole file is sound.

        Raises BadExport, OSError.
        """
        total = xxhash.xxh3_128()
        offset, num_records = HEAD_BYTES, 0
        while True:
            record, head = self._record(offset)
            if record.type == END:
                break
            digest = self._checked(record)
            total.update(head + digest)
            num_records += 1
            offset = record.offset + record.length + SUM_BYTES
            yield record
        is_whole = (record.num_tokens, record.key) == (num_records, total.digest() + bytes(16))
        if not is_whole or record.length or record.offset != self.file_bytes:
            raise BadExport(self.path, f"is damaged: its end at byte {offset} does not fit")

    def payload(self, record: Record) -> bytearray:
        """A record's payload, checked again: the file may have changed since.

        Raises BadExport, OSError.
        """
        payload = bytearray(record.length)
        self._file.seek(record.offset)
        if self._file.readinto(payload) != record.length:
            raise self._cut_short()
        self._compare(record, xxhash.xxh3_128_digest(payload))
        return payload

    def _record(self, offset: int) -> tuple[Record, bytes]:
        self._file.seek(offset)
        head = self._file.read(HEAD_BYTES)
        type_, num_tokens, length, key, _ = RECORD.unpack(self._opened(head, RECORD))
        begin = offset + HEAD_BYTES
        if type_ not in TYPES:
            raise BadExport(self.path, f"holds a record of type {type_}, unknown here")
        if type_ != END and begin + length + SUM_BYTES > self.file_bytes:
            raise self._cut_short()
        return Record(type_, num_tokens, key, begin, length), head

    def _checked(self, record: Record) -> bytes:
        """The sum of a payload, read piece by piece."""
        total = xxhash.xxh3_128()
        self._file.seek(record.offset)
        left = record.length
        while left:
            piece = self._file.read(min(left, PIECE_BYTES))
            if not piece:
                raise self._cut_short()
            total.update(piece)
            left -= len(piece)
        return self._compare(record, total.digest())

    def _compare(self, record: Record, digest: bytes) -> bytes:
        self._file.seek(record.offset + record.length)
        if self._file.read(SUM_BYTES) != digest:
            end = record.offset + record.length
            raise BadExport(self.path, f"is damaged between bytes {record.offset} and {end}")
        return digest

    def _opened(self, head: bytes, kind: struct.Struct) -> bytes:
        """A head without its sum."""
        if len(head) < HEAD_BYTES:
            raise self._cut_short()
        if sealed(head[: kind.size]) != head:
            raise BadExport(self.path, f"is damaged before byte {self._file.tell()}")
        return head[: kind.size]

    def _cut_short(self) -> BadExport:
        return BadExport(self.path, f"ends too early, after {self.file_bytes} bytes")


def sealed(head: bytes) -> bytes:
    """A head with its checksum."""
    return head + SUM.pack(xxhash.xxh3_64_intdigest(head))
