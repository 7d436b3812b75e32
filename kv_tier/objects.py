"""Pieces of KV and state as files: immutable, named by what they hold, right by themselves.

    root/objects/ab/abcd….block     256 tokens of KV
                            .tail   the 1 to 255 tokens after the last full block
                            .state  recurrent state after so many tokens

Bytes: FORMAT.md. Whoever finds an object by its key has found the right one or a damaged one;
damage is found by verify, before a byte is used.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kv_tier.files import OsFiles
from kv_tier.format import Kind

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from _typeshed import ReadableBuffer


class Missing(Exception):
    """There is no such object."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} is not there")
        self.path = path


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
    parts: tuple["ReadableBuffer", ...]
    fingerprint: bytes
    tenant: str
    parent: bytes = bytes(32)


class OpenObject:
    """An object whose header is right. Its payload is not to be used before verify().

    fd, payload_offset, payload_bytes   where the payload lies; the offset is a multiple of 4096
    close() may come while mappings and views of it still live: they stay valid.
    """

    path: Path
    fd: int
    payload_offset: int
    payload_bytes: int
    num_tokens: int
    key: bytes
    kind: Kind
    fingerprint: bytes
    tenant: str
    parent: bytes

    def verify(self) -> None:
        """Bring every page in and hold it to its checksum. Takes long, without the GIL.

        Raises CorruptFile, DiskError.
        """
        raise NotImplementedError

    def view(self) -> "npt.NDArray[np.uint8]":
        """The payload, mapped, read-only: (payload_bytes,). It outlives close()."""
        raise NotImplementedError

    def close(self) -> None:
        """Give the descriptor back. Once more is nothing."""
        raise NotImplementedError


class ObjectStore:
    """All objects under one root. Thread-safe; any number of processes at once."""

    def __init__(self, root: Path, files: OsFiles | None = None) -> None:
        self.root = root

    def write(self, source: Source, *, drop_cache: bool = False) -> int:
        """Bytes it takes on disk; 0 when it is there already. Durable after sync().

        drop_cache  its pages need not stay in RAM

        Raises DiskFull, DiskError; then nothing is left behind.
        """
        raise NotImplementedError

    def sync(self) -> None:
        """Names that were written since outlast a power cut. Raises DiskFull, DiskError."""
        raise NotImplementedError

    def path(self, kind: Kind, key: bytes) -> Path:
        """Where it lies, if it is there."""
        raise NotImplementedError

    def has(self, kind: Kind, key: bytes) -> bool:
        """Whether there is a file of that name; it may be damaged."""
        raise NotImplementedError

    def open(self, kind: Kind, key: bytes, fingerprint: bytes, payload_bytes: int) -> OpenObject:
        """The object, its header checked. Raises Missing, CorruptFile, DiskError."""
        raise NotImplementedError

    def prefetch(self, kind: Kind, key: bytes) -> None:
        """Let the system start reading it. Never waits, never raises."""
        raise NotImplementedError

    def drop(self, kind: Kind, key: bytes) -> int:
        """Unlink it: who has it open or mapped keeps it. Its bytes; 0: gone. Raises DiskError."""
        raise NotImplementedError

    def walk(self) -> Iterator[tuple[Kind, bytes, int, int]]:
        """(kind, key, bytes on disk, time of writing in ms since 1970) of every object."""
        raise NotImplementedError

    def sweep(self, before_ms: int) -> int:
        """Take temporary files away that are older; their number."""
        raise NotImplementedError


def open_file(path: Path, files: OsFiles | None = None) -> OpenObject:
    """An object by its path alone, whatever it holds; its name must fit. Raises like open."""
    raise NotImplementedError


def file_bytes(payload_bytes: int) -> int:
    """What a file of this payload takes on disk: header and whole pages."""
    raise NotImplementedError
