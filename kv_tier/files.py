"""How bytes reach the disk: whole, synced, and under their name only then.

    create .tmp-… ──► reserve all bytes ──► write ──► sync ──► rename ──► sync the folder
                          DiskFull here, if at all               │
    on any failure the temporary file is taken away              └─ from here on it is never changed

The seam of the tests: every system call that changes the disk, or brings file pages in, goes
through OsFiles.perform, which is given one of the functions at the end of this file and its
arguments. A test's OsFiles counts them, lets the n-th fail, kills the process there, or writes down
what a power cut may forget. Nothing else in the tier's formats changes the disk.

Reading is plain open and pread, except that mapped pages are brought in by populate: a bad sector
is then a DiskError of whoever asked, and no SIGBUS in the middle of a step.
"""

import ctypes
import errno
import fcntl
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

TEMPORARY: Final = ".tmp-"  # how names of unfinished files begin
BEGIN_BYTES: Final = 1 << 20  # written before the disk is told to begin with them
SYNC_FILE_RANGE_WRITE: Final = 2
MADV_POPULATE_READ: Final = 22  # Linux 5.14; the mmap module does not name it
LIBC: Final = ctypes.CDLL(None, use_errno=True)
LIBC.sync_file_range.argtypes = (
    ctypes.c_int,
    ctypes.c_int64,
    ctypes.c_int64,
    ctypes.c_uint,
)
LIBC.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class DiskError(Exception):
    """The disk, or the file system, refused. `reason` is the system's, `number` its errno."""

    def __init__(self, path: Path, error: OSError) -> None:
        super().__init__(f"{path}: {error.strerror or error}")
        self.path = path
        self.reason = error.strerror or str(error)
        self.number = error.errno


class DiskFull(DiskError):
    """No room for these bytes: the disk is full, or a quota of the system's is used up."""


class OsFiles:
    """The operations that write. Every one of them raises DiskFull or DiskError. Thread-safe."""

    def __init__(self) -> None:
        self._durable: set[Path] = set()  # folders above others; their own names are durable

    def perform(
        self,
        path: Path,
        operation: Callable[Arguments, Result],
        *args: Arguments.args,
        **named: Arguments.kwargs,
    ) -> Result:
        """The one door to the disk: do it, and say in our words what went wrong.

        path  what the operation is about, for the message
        """
        try:
            return operation(*args, **named)
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            raise (DiskFull if full else DiskError)(path, error) from error

    def write_file(
        self,
        target: Path,
        num_bytes: int,
        pieces: Iterable[tuple[int, "ReadableBuffer"]],
        *,
        drop_cache: bool = False,
    ) -> None:
        """A whole, synced file under its name; sync_folder(target.parent) is left to do.

        num_bytes   of the file: reserved before the first byte is written
        pieces      (offset, bytes), C-contiguous; what no piece covers is zeros
        drop_cache  do not keep its pages in RAM: nobody will read it soon

        On any failure nothing is left behind and an earlier file of that name is untouched.
        """
        temporary = target.with_name(f"{TEMPORARY}{secrets.token_hex(8)}")
        fd = self.perform(temporary, create, temporary)
        try:
            try:
                self._fill(temporary, fd, num_bytes, pieces)
                if drop_cache:
                    self.perform(temporary, forget_pages, fd)
            finally:
                os.close(fd)
            self.perform(target, rename, temporary, target)
        except BaseException:
            with suppress(DiskError):
                self.remove(temporary)
            raise

    def _fill(
        self, path: Path, fd: int, num_bytes: int, pieces: Iterable[tuple[int, "ReadableBuffer"]]
    ) -> None:
        self.perform(path, reserve, fd, num_bytes)
        begun = 0
        for offset, piece in pieces:
            view = memoryview(piece).cast("B")
            assert offset + len(view) <= num_bytes, (path, offset, len(view), num_bytes)
            while view:
                written = self.perform(path, write, fd, view, offset)
                view, offset = view[written:], offset + written
            if offset - begun >= BEGIN_BYTES:  # the disk works while we sum and copy the next
                self.perform(path, begin_sync, fd, begun, offset - begun)
                begun = offset
        self.perform(path, sync, fd)

    def create_empty(self, path: Path) -> None:
        """A file that says all it has to say by its name, which must be new."""
        os.close(self.perform(path, create, path))

    def remove(self, path: Path) -> bool:
        """Take a name away. False: it was gone."""
        return self.perform(path, remove, path)

    def sync_folder(self, folder: Path) -> None:
        """Names made and taken away in this folder outlast a power cut from now on."""
        self.perform(folder, sync_folder, folder)

    def remove_folder(self, folder: Path) -> None:
        """An empty folder goes; one that is not empty stays."""
        self.perform(folder, remove_folder, folder)

    def make_folders(self, root: Path, *names: str) -> Path:
        """root/name/name…, each level there (0700) and its name durable."""
        last = root.joinpath(*names)
        for folder in (*reversed(last.parents[: len(names)]), last):
            if folder in self._durable and folder.is_dir():
                continue
            self.perform(folder, make_folder, folder)
            self.sync_folder(folder.parent)
            if folder != last:  # of those there are few, of sessions many
                self._durable.add(folder)
        return last

    def populate(self, path: Path, address: int, num_bytes: int) -> None:
        """Bring mapped pages of a file into RAM. A page that cannot be read is a DiskError."""
        self.perform(path, populate, address, num_bytes)


def lock_folder(folder: Path) -> int | None:
    """Be alone in a folder: waits for whoever is in there. The descriptor that, closed, lets go.

    The lock is the folder's own (flock): it ends with the process that holds it, however that
    ends, and threads of one process exclude each other, too. None: the folder is not there, or was
    taken away while we waited. Raises DiskError.
    """
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DiskError(folder, error) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        same = os.path.samestat(os.fstat(fd), os.stat(folder))
    except BaseException as error:
        os.close(fd)
        if isinstance(error, FileNotFoundError):
            return None
        raise
    if not same:
        os.close(fd)
    return fd if same else None


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """lock_folder for a folder that nobody takes away."""
    fd = lock_folder(folder)
    assert fd is not None, f"{folder} is gone"
    try:
        yield
    finally:
        os.close(fd)


# The operations themselves, one system call each.


def create(path: Path) -> int:
    """A new file, for its owner alone; its descriptor."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)


def reserve(fd: int, num_bytes: int) -> None:
    """Blocks for all bytes, so that no later write finds the disk full."""
    os.posix_fallocate(fd, 0, num_bytes)


def write(fd: int, piece: "ReadableBuffer", offset: int) -> int:
    """How many of the bytes were written, at least one."""
    return os.pwrite(fd, piece, offset)


def begin_sync(fd: int, offset: int, num_bytes: int) -> None:
    """Let the disk begin with these bytes; a hint, whose failure means nothing. Sync follows."""
    LIBC.sync_file_range(fd, offset, num_bytes, SYNC_FILE_RANGE_WRITE)


def sync(fd: int) -> None:
    """The file's bytes and size outlast a power cut."""
    os.fdatasync(fd)


def rename(source: Path, target: Path) -> None:
    """Atomic: whoever looks sees the old file or the new one."""
    os.rename(source, target)


def remove(path: Path) -> bool:
    """False: there was none."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    return True


def make_folder(folder: Path) -> None:
    """A folder for its owner alone; one that is there stays as it is."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def remove_folder(folder: Path) -> None:
    """An empty folder goes; one that is not empty stays."""
    try:
        os.rmdir(folder)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
            raise


def sync_folder(folder: Path) -> None:
    """The names in a folder outlast a power cut."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def forget_pages(fd: int) -> None:
    """Synced pages of a file need not stay in RAM."""
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


def populate(address: int, num_bytes: int) -> None:
    """Read pages in and map them; without the GIL. An old kernel does it at the first touch."""
    if LIBC.madvise(address, num_bytes, MADV_POPULATE_READ) != 0:
        number = ctypes.get_errno()
        if number != errno.EINVAL:
            raise OSError(number, os.strerror(number))
