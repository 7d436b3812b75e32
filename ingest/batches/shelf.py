"""The files that clients upload and batches write, of all tenants, in one folder of the node.

    LOCKSTEP_HOME/files/                 0700
        TENANT/
            file-ID                      the bytes, 0600
            file-ID.json                 a FileRecord, put there last: without it there is no file
            batch_ID.json                what batches keep here (record.py, rows.py)
        open/TENANT.batch_ID             a batch that is not over
        .upload-...                      on its way; swept when it is a day old

An id begins with the time, so names in order are files in the order in which they came. Nothing
here knows Redis: what a batch has done is told by the files alone, whatever is killed or emptied.
"""

import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from tempfile import NamedTemporaryFile
from typing import Any, Final

import msgspec

from workers.clock import now_ms

FILE_ID: Final = re.compile(r"file-[0-9a-f]{24}")
UPLOAD: Final = ".upload-"
UPLOAD_S: Final = 86_400  # an upload that is older was given up
PIECE_BYTES: Final = 256 * 1024  # read at once


class NoRoom(Exception):
    """The disk, or the tenant's part of it, has no room for so many bytes."""


class FileRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a file.

    purpose     "batch" or "batch_output"
    created_at  Unix seconds, as OpenAI has it; expires_at too, None: it stays
    """

    id: str
    filename: str
    purpose: str
    created_at: int
    expires_at: int | None = None


def new_id(prefix: str) -> str:
    """24 hex digits behind the prefix: 12 of Unix milliseconds, 12 at random."""
    return f"{prefix}{now_ms():012x}{token_hex(6)}"


class Shelf:
    """One for the process; its methods may be called from any thread, and touch the disk.

    keep_free_bytes  of the disk, left to others; 0: max(5 %, 2 GiB), for the store writes there too
    tenant_bytes     of one tenant's files; 0: no limit of its own
    """

    def __init__(self, folder: Path, *, keep_free_bytes: int = 0, tenant_bytes: int = 0) -> None:
        self.folder = folder
        self.keep_free_bytes = keep_free_bytes
        self.tenant_bytes = tenant_bytes

    def of(self, tenant: str) -> Path:
        """The tenant's folder, made when it is first asked for."""
        assert re.fullmatch(r"[a-z0-9]{1,32}", tenant), tenant
        return private_folder(private_folder(self.folder) / tenant)

    @property
    def open(self) -> Path:
        """The folder of markers of batches that are not over."""
        return private_folder(private_folder(self.folder) / "open")

    # --- putting one there ---

    def upload(self) -> Any:
        """A file that nobody sees yet, open for writing; it goes when it is closed."""
        folder = private_folder(self.folder)
        return NamedTemporaryFile(dir=folder, prefix=UPLOAD, buffering=PIECE_BYTES)

    def check_room(self, tenant: str, num_bytes: int) -> None:
        """Raises NoRoom when so many more bytes are too many."""
        disk = shutil.disk_usage(private_folder(self.folder))
        keep_free = self.keep_free_bytes or max(disk.total // 20, 2 << 30)
        if disk.free - num_bytes < keep_free:
            raise NoRoom("the node's disk has no room for it; ask again later")
        if self.tenant_bytes and self.used_bytes(tenant) + num_bytes > self.tenant_bytes:
            most = f"{self.tenant_bytes >> 20} MiB"
            raise NoRoom(f"the files of this tenant may have {most} in all; delete some of them")

    def add(self, tenant: str, uploaded: Any, record: FileRecord) -> None:
        """Keeps what upload() took: on the disk before anybody sees it."""
        uploaded.flush()
        os.fsync(uploaded.fileno())
        os.link(uploaded.name, self.of(tenant) / record.id)
        self.note(tenant, record)

    def begin(self, tenant: str, record: FileRecord) -> Path:
        """An empty file that will grow, seen from now on."""
        path = self.of(tenant) / record.id
        path.touch(0o600)
        self.note(tenant, record)
        return path

    def note(self, tenant: str, record: FileRecord) -> None:
        write_record(self.of(tenant) / f"{record.id}.json", record)

    # --- looking ---

    def record(self, tenant: str, file_id: str) -> FileRecord | None:
        """None when the tenant has no such file."""
        if not FILE_ID.fullmatch(file_id):
            return None
        record: FileRecord | None = read_record(self.of(tenant) / f"{file_id}.json", FileRecord)
        return record

    def path(self, tenant: str, file_id: str) -> Path:
        assert FILE_ID.fullmatch(file_id), file_id
        return self.of(tenant) / file_id

    def num_bytes(self, tenant: str, file_id: str) -> int:
        """As many as there are now: a batch's output grows."""
        with suppress(FileNotFoundError):
            return self.path(tenant, file_id).stat().st_size
        return 0

    def records(self, tenant: str, *, newest_first: bool, after: str) -> Iterator[FileRecord]:
        """All files behind the one called `after`; "": from the beginning."""
        names = (name.removesuffix(".json") for name in os.listdir(self.of(tenant)))
        for file_id in in_order(filter(FILE_ID.fullmatch, names), newest_first, after):
            record = self.record(tenant, file_id)
            if record is not None:
                yield record

    def used_bytes(self, tenant: str) -> int:
        with os.scandir(self.of(tenant)) as entries:
            return sum(e.stat().st_size for e in entries if FILE_ID.fullmatch(e.name))

    # --- taking one away ---

    def remove(self, tenant: str, file_id: str) -> None:
        """The record first: what has none is no file, and is swept."""
        path = self.path(tenant, file_id)
        path.with_suffix(".json").unlink(missing_ok=True)
        path.unlink(missing_ok=True)

    def sweep(self, now_s: float) -> None:
        """Removes what has expired and what nobody finished."""
        for entry in self.folder.glob(f"{UPLOAD}*"):
            with suppress(FileNotFoundError):
                if entry.stat().st_mtime < now_s - UPLOAD_S:
                    entry.unlink()
        for tenant in self.tenants():
            for record in self.records(tenant, newest_first=False, after=""):
                if record.expires_at is not None and record.expires_at <= now_s:
                    self.remove(tenant, record.id)

    def tenants(self) -> list[str]:
        if not self.folder.is_dir():
            return []
        hidden = (self.open.name, ".")
        return [e.name for e in os.scandir(self.folder) if not e.name.startswith(hidden)]


def in_order(names: Iterable[str], newest_first: bool, after: str) -> list[str]:
    """Each name once, those behind `after`."""
    ordered = sorted(set(names), reverse=newest_first)
    if not after:
        return ordered
    return [name for name in ordered if (name < after if newest_first else name > after)]


def pieces(path: Path, end: int) -> Iterator[bytes]:
    """The bytes [0, end) of a file."""
    with path.open("rb", buffering=0) as file:
        while end > 0 and (piece := file.read(min(end, PIECE_BYTES))):
            yield piece
            end -= len(piece)


def private_folder(path: Path) -> Path:
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def read_record(path: Path, kind: type[Any]) -> Any:
    """The record in a JSON file; None when there is none, or none that can be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None


def write_record(path: Path, record: msgspec.Struct, *, durable: bool = True) -> None:
    """Replaces a JSON file at once. durable: it and its name are on the disk when this returns."""
    fresh = path.with_name(f".{path.name}.{token_hex(4)}")
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(msgspec.json.encode(record))
        if durable:
            file.flush()
            os.fsync(file.fileno())
    fresh.replace(path)
    if durable:
        descriptor = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
