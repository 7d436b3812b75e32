"""Pieces of KV and state as files: immutable, named by what they hold, right by themselves.

    root/objects/ab/abcd….block     256 tokens of KV
                            .tail   the 1 to 255 tokens after the last full block
                            .state  recurrent state after so many tokens

Bytes: FORMAT.md. Whoever finds an object by its key has found the right one or a damaged one;
damage is found by verify, before a byte is used.
"""

import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import xxhash

from kv_tier.files import TEMPORARY, DiskError, OsFiles
from kv_tier.format import (
    KEY_BYTES,
    NO_KEY,
    PIECE_BYTES,
    CorruptFile,
    Kind,
    ObjectHeader,
    encode_header,
    file_bytes,
    header_bytes,
    padded_bytes,
)
from kv_tier.open_object import OpenObject, open_file

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

NAME: Final = re.compile(r"([0-9a-f]{64})\.(block|tail|state)")


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """A part that lies in a device's memory: it comes when it is written, and only then.

    num_bytes  of what fetch gives, which is called in the writing thread
    """

    num_bytes: int
    fetch: Callable[[], "ReadableBuffer"]


@dataclass(frozen=True, slots=True)
class Source:
    """What is to be written.

    num_tokens   256 of a block, 1 to 255 of a tail, the position of a state
    parts        C-contiguous buffers; the payload is their bytes, one after the other
    fingerprint  32 bytes (chain.fingerprint_of)
    parent       key of what comes before; zeros: the first, or not told
    """

    key: bytes
    kind: Kind
    num_tokens: int
    parts: tuple["ReadableBuffer | Elsewhere", ...]
    fingerprint: bytes
    tenant: str
    parent: bytes = NO_KEY

    @property
    def payload_bytes(self) -> int:
        """Of all parts."""
        return sum(map(_num_bytes, self.parts))


class ObjectStore:
    """All objects under one root. Thread-safe; any number of processes at once."""

    def __init__(self, root: Path, files: OsFiles | None = None) -> None:
        self.root = root
        self._files = files or OsFiles()
        self._lock = threading.Lock()
        self._made: set[str] = set()  # folders whose own names are durable
        self._unsynced: set[Path] = set()  # folders in which names are new

    def write(self, source: Source, *, drop_cache: bool = False) -> int:
        """Bytes it takes on disk; 0 when it is there already. Durable after sync().

        drop_cache  its pages need not stay in RAM

        Raises DiskFull, DiskError; then nothing is left behind.
        """
        path = self.path(source.kind, source.key)
        payload_bytes = source.payload_bytes
        num_bytes = file_bytes(payload_bytes)
        written = not path.exists()
        if written:
            self._make_folder(path.parent.name)
            pieces = _pieces(source, payload_bytes)
            self._files.write_file(path, num_bytes, pieces, drop_cache=drop_cache)
        with self._lock:  # who finds it there cannot know whether its name is durable yet
            self._unsynced.add(path.parent)
        return num_bytes if written else 0

    def sync(self) -> None:
        """Objects written before this call outlast a power cut. Raises DiskFull, DiskError."""
        with self._lock:
            folders, self._unsynced = self._unsynced, set()
        try:
            for folder in sorted(folders):
                self._files.sync_folder(folder)
        except DiskError:
            with self._lock:
                self._unsynced |= folders
            raise

    def path(self, kind: Kind, key: bytes) -> Path:
        """Where it lies, if it is there."""
        assert len(key) == KEY_BYTES, key
        name = key.hex()
        return self.root / "objects" / name[:2] / f"{name}.{kind}"

    def has(self, kind: Kind, key: bytes) -> bool:
        """Whether there is a file of that name; it may be damaged."""
        return self.path(kind, key).exists()

    def open(self, kind: Kind, key: bytes, fingerprint: bytes, payload_bytes: int) -> OpenObject:
        """The object, its header checked. Raises Missing, CorruptFile, DiskError."""
        opened = open_file(self.path(kind, key), self._files)
        if opened.fingerprint == fingerprint and opened.payload_bytes == payload_bytes:
            return opened
        opened.close()
        reason = f"{opened.payload_bytes} bytes of {opened.fingerprint.hex()}, not"
        raise CorruptFile(opened.path, f"{reason} {payload_bytes} of {fingerprint.hex()}")

    def prefetch(self, kind: Kind, key: bytes) -> None:
        """Let the system start reading it. Never waits, never raises."""
        with suppress(OSError):
            fd = os.open(self.path(kind, key), os.O_RDONLY | os.O_NOFOLLOW)
            try:
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_WILLNEED)
            finally:
                os.close(fd)

    def drop(self, kind: Kind, key: bytes) -> int:
        """Unlink it: who has it open or mapped keeps it. Its bytes; 0: gone. Raises DiskError."""
        path = self.path(kind, key)
        try:
            num_bytes = path.stat().st_size
        except FileNotFoundError:
            return 0
        return num_bytes if self._files.remove(path) else 0

    def walk(self) -> Iterator[tuple[Kind, bytes, int, int]]:
        """(kind, key, bytes on disk, time of writing in ms since 1970) of every object."""
        for entry in self._entries():
            named = NAME.fullmatch(entry.name)
            if named is None or Path(entry.path).parent.name != entry.name[:2]:
                continue
            with suppress(FileNotFoundError):
                status = entry.stat(follow_symlinks=False)
                kind = cast(Kind, named[2])
                yield kind, bytes.fromhex(named[1]), status.st_size, status.st_mtime_ns // 10**6

    def sweep(self, before_ms: int) -> int:
        """Take temporary files away that are older; their number."""
        swept = 0
        for entry in self._entries():
            with suppress(FileNotFoundError, DiskError):
                old = entry.stat(follow_symlinks=False).st_mtime_ns < before_ms * 10**6
                if entry.name.startswith(TEMPORARY) and old:
                    swept += self._files.remove(Path(entry.path))
        return swept

    def _entries(self) -> Iterator["os.DirEntry[str]"]:
        """Everything in the folders of objects."""
        folder = self.root / "objects"
        names = sorted(os.listdir(folder)) if folder.is_dir() else []
        for name in names:
            with suppress(NotADirectoryError, FileNotFoundError), os.scandir(folder / name) as all:
                yield from all

    def _make_folder(self, name: str) -> None:
        if name not in self._made or not (self.root / "objects" / name).is_dir():
            self._files.make_folders(self.root, "objects", name)
            self._made.add(name)


def _num_bytes(part: "ReadableBuffer | Elsewhere") -> int:
    return part.num_bytes if isinstance(part, Elsewhere) else memoryview(part).nbytes


def _pieces(source: Source, payload_bytes: int) -> Iterator[tuple[int, "ReadableBuffer"]]:
    """The padded payload, cut where a checksum ends; then the header, which has the checksums.

    A piece is summed right before it is written, while it is in the processor's cache.
    """
    begin = offset = header_bytes(payload_bytes)
    padding = bytes(padded_bytes(payload_bytes) - payload_bytes)
    running, sums = xxhash.xxh3_128(), []
    for part in (*source.parts, padding):
        view = memoryview(part.fetch() if isinstance(part, Elsewhere) else part).cast("B")
        while view:
            piece = view[: PIECE_BYTES - (offset - begin) % PIECE_BYTES]
            running.update(piece)
            yield offset, piece
            view, offset = view[len(piece) :], offset + len(piece)
            if (offset - begin) % PIECE_BYTES == 0:
                sums.append(running.digest())
                running.reset()
    if (offset - begin) % PIECE_BYTES:
        sums.append(running.digest())
    yield 0, encode_header(_header_of(source, payload_bytes), sums)


def _header_of(source: Source, payload_bytes: int) -> ObjectHeader:
    return ObjectHeader(
        source.kind,
        source.num_tokens,
        payload_bytes,
        source.key,
        source.parent,
        source.fingerprint,
        source.tenant,
    )
