"""One SQLite file that may be lost at any moment, for it can be made again from what it is about.

Every thread has a connection of its own, every process as many as it likes (WAL). A file that is
gone, damaged or of another version is replaced by a new one, filled by a scan; whoever still has
the old one open notices at its next transaction and follows.
"""

import errno
import os
import sqlite3
import threading
import weakref
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Final, TypeVar

from kv_tier.files import DiskError, DiskFull, locked

Answer = TypeVar("Answer")
Work = Callable[[sqlite3.Connection], Answer]

BUSY_S: Final = 10.0  # how long a transaction waits for that of another process
CACHE_KIB: Final = 2048  # pages that one connection keeps
# the file is not what SQLite, or we, left there: it is made again
DAMAGED: Final = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_READONLY}
GONE: Final = {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_ERROR}
WRONG: Final = {sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISUSE}


class _OtherFile(Exception):
    """What lies under our name is another file than the one we opened, or none."""


class _Line:
    """One thread's connection, and which file it is connected to; closed with its thread."""

    def __init__(self, connection: sqlite3.Connection, inode: int) -> None:
        self.connection = connection
        self.inode = inode

    def __del__(self) -> None:
        with suppress(sqlite3.Error):
            self.connection.close()


class LedgerFile:
    """Transactions on the file at `path`.

    schema   statements that make an empty one
    version  of the schema: its user_version
    fill     writes everything that is to be in a new one, by a scan
    renew    writes again what only this process knows, into a file that others made
    """

    def __init__(
        self,
        path: Path,
        schema: str,
        version: int,
        *,
        fill: Work[None],
        renew: Work[None],
    ) -> None:
        self.path = path
        self._schema, self._version = schema, version
        self._fill, self._renew = fill, renew
        self._inode = 0  # of the file that this process used last
        self._mine = threading.local()
        self._lines: weakref.WeakSet[_Line] = weakref.WeakSet()
        self._guard = threading.Lock()

    def read(self, work: Work[Answer]) -> Answer:
        """work(connection), on one state of the file.   Raises DiskFull, DiskError."""
        return self._run(work, "BEGIN")

    def write(self, work: Work[Answer]) -> Answer:
        """work(connection), all of it or nothing; nobody else writes meanwhile.

        It may be called twice, after a replacement.   Raises DiskFull, DiskError.
        """
        return self._run(work, "BEGIN IMMEDIATE")

    def close(self) -> None:
        """Close the connections of all threads; the next transaction opens again."""
        with self._guard:
            for line in list(self._lines):
                line.connection.close()
            self._mine = threading.local()

    def _run(self, work: Work[Answer], begin: str) -> Answer:
        for attempt in range(3):
            inode = self._inode_now()
            try:
                return _transaction(self._connection(inode), work, begin)
            except (_OtherFile, sqlite3.DatabaseError) as error:
                if attempt == 2 or not (isinstance(error, _OtherFile) or self._is_lost(error)):
                    raise self._in_our_words(error) from error
                self._mine.line = None
                self._replace(inode)
        raise AssertionError("unreachable")

    def _inode_now(self) -> int:
        """0: there is none."""
        try:
            return os.stat(self.path).st_ino
        except FileNotFoundError:
            return 0

    def _connection(self, inode: int) -> sqlite3.Connection:
        """This thread's, to the file of this inode.   Raises _OtherFile."""
        if inode == 0:
            raise _OtherFile(f"{self.path} is gone")
        line: _Line | None = getattr(self._mine, "line", None)
        if line is None or line.inode != inode:
            connection = self._open()
            with self._guard:
                line = self._mine.line = _Line(connection, inode)
                self._lines.add(line)
            if self._inode not in (0, inode):  # somebody made a new one
                _transaction(connection, self._renew, "BEGIN IMMEDIATE")
            self._inode = inode
        return line.connection

    def _open(self) -> sqlite3.Connection:
        """Raises _OtherFile, sqlite3.DatabaseError."""
        connection = _connect(self.path)
        try:
            if _number(connection, "PRAGMA user_version") != self._version:
                raise _OtherFile(f"{self.path} is of another version")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        except BaseException:
            connection.close()
            raise
        return connection

    def _replace(self, inode: int) -> None:
        """Put a new file where the one of this inode was, unless somebody has done it.

        Raises DiskFull, DiskError.
        """
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with locked(self.path.parent):
                now = self._inode_now()
                if now == inode or now == 0:
                    self._make()
        except (OSError, sqlite3.DatabaseError) as error:
            raise self._in_our_words(error) from error

    def _make(self) -> None:
        """The new file appears whole, without the log of the one before it."""
        new = self.path.with_name(f".tmp-{self.path.name}")
        new.unlink(missing_ok=True)
        os.close(os.open(new, os.O_CREAT | os.O_WRONLY, 0o600))  # its log gets the same mode
        with closing(_connect(new)) as connection:
            connection.execute("PRAGMA journal_mode = OFF")
            connection.executescript(self._schema)
            _transaction(connection, self._fill, "BEGIN")
            _transaction(connection, self._renew, "BEGIN")
            connection.execute(f"PRAGMA user_version = {self._version}")
            connection.execute("PRAGMA journal_mode = WAL")
        for suffix in ("-wal", "-shm"):
            self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
        os.replace(new, self.path)

    def _is_lost(self, error: sqlite3.DatabaseError) -> bool:
        """Whether the file has to be made again."""
        code = _code(error)
        return code in DAMAGED or (code in GONE and not self._is_sound())

    def _is_sound(self) -> bool:
        """Whether a new connection finds what should be there."""
        try:
            with closing(self._open()) as connection:
                return _number(connection, "SELECT count(*) FROM sqlite_schema") > 0
        except (_OtherFile, sqlite3.DatabaseError):
            return False

    def _in_our_words(self, error: Exception) -> Exception:
        """What the caller is told; a statement that is wrong stays what it is."""
        if isinstance(error, OSError):
            full = error.errno == errno.ENOSPC
            return (DiskFull if full else DiskError)(self.path, error)
        code = _code(error)
        if isinstance(error, sqlite3.DatabaseError) and code in (0, *WRONG):
            return error
        if code == sqlite3.SQLITE_FULL:
            return DiskFull(self.path, OSError(errno.ENOSPC, str(error)))
        return DiskError(self.path, OSError(errno.EIO, str(error)))


def _connect(path: Path, mode: str = "rw") -> sqlite3.Connection:
    """mode rw: never makes one.   Raises sqlite3.DatabaseError."""
    return sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={mode}",
        uri=True,
        timeout=BUSY_S,
        isolation_level=None,
        check_same_thread=False,
    )


def _transaction(connection: sqlite3.Connection, work: Work[Answer], begin: str) -> Answer:
    connection.execute(begin)
    try:
        answer = work(connection)
        connection.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise
    return answer


def _number(connection: sqlite3.Connection, query: str) -> int:
    (number,) = connection.execute(query).fetchone()
    return int(number)


def _code(error: Exception) -> int:
    """SQLite's primary result code; 0: the error is not SQLite's own."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF
