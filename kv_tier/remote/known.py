"""What this node knows to be in the object store: a note that may be lost; then it asks again."""

import sqlite3
from collections.abc import Iterable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Final

from kv_tier.ledger_file import LedgerFile
from kv_tier.manifest import Manifest
from kv_tier.remote.places import Version

VERSION: Final = 1
SCHEMA: Final = """
CREATE TABLE objects (
    name BLOB PRIMARY KEY,          -- names.name_of, of the fleet's key
    written_ms INTEGER NOT NULL     -- when it was written there last, by the store's clock
) WITHOUT ROWID;
CREATE TABLE sessions (
    tenant TEXT NOT NULL,
    session_id TEXT NOT NULL,
    fence INTEGER NOT NULL,         -- of the manifest that is there
    generation INTEGER NOT NULL,
    PRIMARY KEY (tenant, session_id)
) WITHOUT ROWID;
"""
FORGET_MS: Final = 7 * 86_400_000  # what was written longer ago is asked for anyway


class Known:
    """Of one store. Thread-safe; every method raises DiskFull or DiskError."""

    def __init__(self, root: Path, url: str) -> None:
        name = f"remote-{sha256(url.encode()).hexdigest()[:16]}.sqlite"
        self._file = LedgerFile(root / name, SCHEMA, VERSION, fill=_nothing, renew=_nothing)

    def close(self) -> None:
        self._file.close()

    def written_ms(self, names: Iterable[bytes]) -> dict[bytes, int]:
        """When each was written last, of those that are known."""

        def work(db: sqlite3.Connection) -> dict[bytes, int]:
            query = "SELECT written_ms FROM objects WHERE name = ?"
            found = {name: db.execute(query, (name,)).fetchone() for name in names}
            return {name: row[0] for name, row in found.items() if row}

        return self._file.read(work)

    def note(self, written: Sequence[tuple[bytes, int]]) -> None:
        """(name, written_ms) of objects that are there."""
        query = "INSERT OR REPLACE INTO objects VALUES (?, ?)"
        self._file.write(lambda db: db.executemany(query, written))

    def forget(self, name: bytes) -> None:
        """An object turned out not to be there."""
        self._file.write(lambda db: db.execute("DELETE FROM objects WHERE name = ?", (name,)))

    def tidy(self, now_ms: int) -> None:
        """What would be asked for anyway need not be noted."""
        query, values = "DELETE FROM objects WHERE written_ms < ?", (now_ms - FORGET_MS,)
        self._file.write(lambda db: db.execute(query, values))

    def version(self, tenant: str, session_id: str) -> Version | None:
        """Of the manifest that this node wrote there last."""

        def work(db: sqlite3.Connection) -> Version | None:
            query = "SELECT fence, generation FROM sessions WHERE tenant = ? AND session_id = ?"
            row = db.execute(query, (tenant, session_id)).fetchone()
            return (row[0], row[1]) if row else None

        return self._file.read(work)

    def note_session(self, manifest: Manifest) -> None:
        """Its manifest is there."""
        values = (
            *(manifest.tenant, manifest.session_id),
            *(manifest.fence, manifest.generation),
        )
        query = "INSERT OR REPLACE INTO sessions VALUES (?, ?, ?, ?)"
        self._file.write(lambda db: db.execute(query, values))

    def forget_session(self, tenant: str, session_id: str) -> None:
        query = "DELETE FROM sessions WHERE tenant = ? AND session_id = ?"
        self._file.write(lambda db: db.execute(query, (tenant, session_id)))


def _nothing(db: sqlite3.Connection) -> None:
    """A new note is empty, and nothing is known beside it."""
