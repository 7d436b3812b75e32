"""What is on the disk, counted: the books as a scan of all files would write them."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from kv_tier import ledger_rows as rows
from kv_tier.files import DiskError
from kv_tier.format import CorruptFile
from kv_tier.ledger_rows import Stored
from kv_tier.manifest import Manifest
from kv_tier.names import Link, kind_and_key, name_of, parent_name
from kv_tier.objects import ObjectStore
from kv_tier.open_object import Missing, open_file
from kv_tier.sessions import Sessions

YOUNG_MS: Final = 10 * 60_000  # a written object waits so long for its manifest
KNOWN: Final = """
CREATE TEMP TABLE known (name PRIMARY KEY, tenant, tokens, parent, depth, used_ms) WITHOUT ROWID
"""


class Census:
    """A scan of sessions, objects and pins under one root."""

    def __init__(self, root: Path, sessions: Sessions, objects: ObjectStore) -> None:
        self._pins = root / "pins"
        self._sessions, self._objects = sessions, objects

    def pin_path(self, tenant: str, session_id: str) -> Path:
        """An empty file that is there while the session is pinned."""
        return self._pins / tenant / session_id

    def manifests(self) -> Iterator[tuple[Manifest, bool]]:
        """Each session's head, and whether it is pinned."""
        for tenant, session_id in self._sessions.ids():
            try:
                manifest = self._sessions.head(tenant, session_id)
            except (CorruptFile, DiskError):
                continue  # of a later version, or not readable: somebody else's to say
            if manifest is not None:
                yield manifest, self.pin_path(tenant, session_id).exists()

    def objects(self) -> Iterator[tuple[bytes, int, int]]:
        """(name, bytes on the disk, Unix ms of writing) of every object."""
        for kind, key, num_bytes, written_ms in self._objects.walk():
            yield name_of(kind, key), num_bytes, written_ms

    def stored(self, name: bytes, num_bytes: int) -> Stored | None:
        """What an object's own header says; None: it is damaged or gone."""
        try:
            opened = open_file(self._objects.path(*kind_and_key(name)))
        except (Missing, CorruptFile, DiskError):
            return None
        opened.close()
        parent = parent_name(opened.parent)
        return Stored(name, opened.tenant, num_bytes, opened.num_tokens, parent)


def fill(db: sqlite3.Connection, census: Census) -> None:
    """Write all of it into an empty ledger."""
    db.execute(KNOWN)
    for manifest, is_pinned in census.manifests():
        _note(db, manifest, rows.put_session(db, manifest))
        if is_pinned:
            rows.pin(db, manifest.tenant, manifest.session_id, True)
    for name, num_bytes, written_ms in census.objects():
        if not _insert_known(db, name, num_bytes, written_ms):
            stored = census.stored(name, num_bytes)
            if stored is not None:
                rows.insert_object(db, stored, written_ms, written_ms + YOUNG_MS)
    rows.lift_values(db)
    db.execute("DROP TABLE known")


def _note(db: sqlite3.Connection, manifest: Manifest, links: list[Link]) -> None:
    """What a manifest says of the objects that it names."""
    db.executemany(
        "INSERT INTO known VALUES (?, ?, ?, ?, ?, ?)"
        " ON CONFLICT DO UPDATE SET used_ms = max(used_ms, excluded.used_ms)",
        [
            (one.name, manifest.tenant, one.num_tokens, one.parent, one.depth, manifest.used_ms)
            for one in links
        ],
    )


def _insert_known(db: sqlite3.Connection, name: bytes, num_bytes: int, written_ms: int) -> bool:
    """False: no manifest names it."""
    query = "SELECT tenant, tokens, parent, depth, used_ms FROM known WHERE name = ?"
    row = db.execute(query, (name,)).fetchone()
    if row is None:
        return False
    tenant, num_tokens, parent, depth, used_ms = row
    stored = Stored(name, tenant, num_bytes, num_tokens, parent)
    rows.insert_object(db, stored, max(used_ms, written_ms), 0, depth)
    return True
