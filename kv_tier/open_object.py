"""One object's file, open: its header is right; its payload is brought in and checked by verify().

    open_file ── header, name and size fit each other ─► OpenObject ── verify ─► view, or mapped

What is wrong with a file is an exception of whoever opens or verifies it, and never a SIGBUS.
"""

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import xxhash

from kv_tier.files import DiskError, OsFiles
from kv_tier.format import (
    PAGE_BYTES,
    PIECE_BYTES,
    CorruptFile,
    ObjectHeader,
    announced_header_bytes,
    decode_header,
    file_bytes,
    header_bytes,
    padded_bytes,
)
from kv_tier.mapping import map_pages

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


POPULATE_BYTES: Final = 8 * PIECE_BYTES  # brought in before they are summed


class Missing(Exception):
    """There is no such object."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} is not there")
        self.path = path


class OpenObject:
    """An object whose header is right. Its payload is not to be used before verify().

    fd, payload_offset, payload_bytes   where the payload lies; the offset is a multiple of 4096

    close() may come while mappings and views of it still live: they stay valid.
    """

    def __init__(
        self, path: Path, fd: int, header: ObjectHeader, sums: list[bytes], files: OsFiles
    ) -> None:
        self.path = path
        self.fd = fd
        self.payload_offset = header_bytes(header.payload_bytes)
        self.payload_bytes = header.payload_bytes
        self.num_tokens = header.num_tokens
        self.key = header.key
        self.kind = header.kind
        self.fingerprint = header.fingerprint
        self.tenant = header.tenant
        self.parent = header.parent
        self._sums = sums
        self._files = files
        self._pages: npt.NDArray[np.uint8] | None = None  # once they are verified

    def verify(self) -> None:
        """Bring every page in and hold it to its checksum. Takes long, without the GIL.

        Raises CorruptFile, DiskError.
        """
        os.posix_fadvise(self.fd, self.payload_offset, 0, os.POSIX_FADV_WILLNEED)
        pages = self._map()
        for index, expected in enumerate(self._sums):
            begin, end = index * PIECE_BYTES, min((index + 1) * PIECE_BYTES, len(pages))
            if begin % POPULATE_BYTES == 0:
                size = min(POPULATE_BYTES, len(pages) - begin)
                self._files.populate(self.path, pages.ctypes.data + begin, size)
            digest = xxhash.xxh3_128(pages.data[begin:end]).digest()  # its one call keeps the GIL
            if digest != expected:
                raise CorruptFile(self.path, f"payload [{begin}, {end}) is not what was written")
        self._pages = pages

    @property
    def address(self) -> int | None:
        """Where its payload is mapped and brought in; None: nowhere yet."""
        return None if self._pages is None else self._pages.ctypes.data

    def view(self) -> "npt.NDArray[np.uint8]":
        """The payload, mapped, read-only: (payload_bytes,). It outlives close()."""
        pages = self._map() if self._pages is None else self._pages
        return pages[: self.payload_bytes]

    def close(self) -> None:
        """Give the descriptor back. Once more is nothing."""
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1

    def _map(self) -> "npt.NDArray[np.uint8]":
        """Payload and padding. The mapping lives as long as the array."""
        assert self.fd >= 0, f"{self.path} is closed"
        return map_pages(self.fd, self.payload_offset, padded_bytes(self.payload_bytes))


def open_file(path: Path, files: OsFiles | None = None) -> OpenObject:
    """An object by its path alone; header, name and size must fit each other. Raises like open."""
    files = files or OsFiles()
    try:
        fd = files.perform(path, os.open, path, os.O_RDONLY | os.O_NOFOLLOW)
    except DiskError as error:
        if error.number == errno.ENOENT:
            raise Missing(path) from error
        raise
    try:
        header, sums = _read_header(path, fd, files)
        if path.name != f"{header.key.hex()}.{header.kind}":
            raise CorruptFile(path, f"it is {header.kind} {header.key.hex()}, under another's name")
        size = os.fstat(fd).st_size
        if size != file_bytes(header.payload_bytes):
            raise CorruptFile(path, f"{size} bytes, not {file_bytes(header.payload_bytes)}")
    except BaseException:
        os.close(fd)
        raise
    return OpenObject(path, fd, header, sums, files)


def _read_header(path: Path, fd: int, files: OsFiles) -> tuple[ObjectHeader, list[bytes]]:
    data = files.perform(path, os.pread, fd, PAGE_BYTES, 0)
    num_bytes = announced_header_bytes(data, path)
    if num_bytes > PAGE_BYTES:
        data += files.perform(path, os.pread, fd, num_bytes - PAGE_BYTES, PAGE_BYTES)
    return decode_header(data, path)
