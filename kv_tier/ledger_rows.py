"""The statements of the ledger: each is one function of a connection, inside a transaction."""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from kv_tier.eviction import Candidate, gdsf_value
from kv_tier.manifest import Manifest
from kv_tier.names import Link, is_leaf, lifted, links_of, manifest_bytes

STATE: Final = "x'03'"  # how names of states begin (names.name_of)
GUESSED_TOKENS_PER_S: Final = 200.0  # what computing costs, when nobody said


@dataclass(frozen=True, slots=True)
class Stored:
    """An object on the disk."""

    name: bytes
    tenant: str
    num_bytes: int
    num_tokens: int
    parent: bytes = b""


@dataclass(frozen=True, slots=True)
class SessionRow:
    """What a listing says of a session. bytes: of all it names; what is shared counts in each."""

    tenant: str
    session_id: str
    generation: int
    num_tokens: int
    num_kv: int
    bytes: int
    pinned: bool
    created_ms: int
    used_ms: int
    model: str
    num_checkpoints: int


class Mark(NamedTuple):
    """Tells one commit of a session from another."""

    generation: int
    used_ms: int


@dataclass(frozen=True, slots=True)
class Totals:
    """Of a tenant, or of all."""

    num_bytes: int = 0
    num_objects: int = 0
    num_sessions: int = 0


@dataclass(frozen=True, slots=True)
class Room:
    """What may be used: bytes in all and of one tenant, 0 without a limit; of the disk, free now
    and to be kept free."""

    quota_bytes: int
    tenant_bytes: int
    free_bytes: int
    keep_free_bytes: int


@dataclass(frozen=True, slots=True)
class Shortage:
    """Bytes that have to go first: of anybody's, and of the tenant's own."""

    all_bytes: int
    tenant_bytes: int


def release(db: sqlite3.Connection, reservation: int) -> None:
    db.execute("DELETE FROM reservations WHERE id = ?", (reservation,))


def clock(db: sqlite3.Connection) -> float:
    return float(db.execute("SELECT value FROM clock").fetchone()[0])


def totals(db: sqlite3.Connection, tenant: str) -> Totals:
    query = "SELECT bytes, objects, sessions FROM totals WHERE tenant = ?"
    row = db.execute(query, (tenant,)).fetchone()
    return Totals(*row) if row else Totals()


def shortage(db: sqlite3.Connection, tenant: str, num_bytes: int, room: Room) -> Shortage:
    query = "SELECT coalesce(sum(bytes), 0), coalesce(sum(bytes * (tenant = ?)), 0)"
    everyone, own = db.execute(query + " FROM reservations", (tenant,)).fetchone()
    over_disk = everyone + num_bytes + room.keep_free_bytes - room.free_bytes
    over_all = totals(db, "").num_bytes + everyone + num_bytes - room.quota_bytes
    over_own = totals(db, tenant).num_bytes + own + num_bytes - room.tenant_bytes
    over_all = max(over_disk, over_all if room.quota_bytes else 0)
    return Shortage(max(0, over_all), max(0, over_own) if room.tenant_bytes else 0)


def insert_object(
    db: sqlite3.Connection, stored: Stored, used_ms: int, young_ms: int, depth: int = 0
) -> None:
    """A new object, or one that is there already and waits for another manifest."""
    seconds = stored.num_tokens / GUESSED_TOKENS_PER_S
    value = gdsf_value(clock(db), 1, seconds, stored.num_bytes)
    values = (stored.name, stored.tenant, stored.num_bytes, stored.num_tokens, stored.parent)
    db.execute(
        "INSERT INTO objects (name, tenant, bytes, tokens, parent, depth, seconds, hits, value,"
        " used_ms, young_ms, leased_ms) VALUES (?, ?, ?, ?, ?, ?, ?, 1, ?, ?, ?, 0)"
        " ON CONFLICT (name) DO UPDATE SET used_ms = max(used_ms, excluded.used_ms),"
        " young_ms = max(young_ms, excluded.young_ms)",
        (*values, depth, seconds, value, used_ms, young_ms),
    )


def session_number(db: sqlite3.Connection, tenant: str, session_id: str) -> int | None:
    query = "SELECT id FROM sessions WHERE tenant = ? AND session_id = ?"
    row = db.execute(query, (tenant, session_id)).fetchone()
    return int(row[0]) if row else None


def mark(db: sqlite3.Connection, tenant: str, session_id: str) -> Mark | None:
    """Which commit of a session is booked; None: no such session."""
    query = "SELECT generation, used_ms FROM sessions WHERE tenant = ? AND session_id = ?"
    row = db.execute(query, (tenant, session_id)).fetchone()
    return Mark(*row) if row else None


def drop_session(db: sqlite3.Connection, tenant: str, session_id: str) -> None:
    """With all that it names; the objects stay."""
    query = "DELETE FROM sessions WHERE tenant = ? AND session_id = ?"
    db.execute(query, (tenant, session_id))


def own_objects(db: sqlite3.Connection, tenant: str, session_id: str, now_ms: int) -> list[bytes]:
    """Names of what only this session names, and nobody is about to name."""
    found = db.execute(
        "SELECT name FROM names JOIN objects ON name = object"
        " WHERE session = ? AND holders = 1 AND young_ms <= ?",
        (session_number(db, tenant, session_id), now_ms),
    )
    return [row[0] for row in found]


def manifests_bytes(db: sqlite3.Connection, tenant: str, session_id: str) -> int:
    """What a session's manifests are counted as; 0: there is none."""
    query = "SELECT bytes FROM sessions WHERE tenant = ? AND session_id = ?"
    row = db.execute(query, (tenant, session_id)).fetchone()
    return int(row[0]) if row else 0


def put_session(db: sqlite3.Connection, manifest: Manifest) -> list[Link]:
    """The session's row and what it names, as the manifest says; its links."""
    db.execute(
        "INSERT INTO sessions (tenant, session_id, generation, tokens, num_kv, bytes, model,"
        " created_ms, used_ms) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (tenant, session_id) DO UPDATE SET generation = excluded.generation,"
        " tokens = excluded.tokens, num_kv = excluded.num_kv, bytes = excluded.bytes,"
        " model = excluded.model, created_ms = excluded.created_ms, used_ms = excluded.used_ms",
        (
            manifest.tenant,
            manifest.session_id,
            manifest.generation,
            len(manifest.token_ids),
            manifest.num_kv,
            manifest_bytes(manifest),
            manifest.model,
            manifest.created_ms,
            manifest.used_ms,
        ),
    )
    number = session_number(db, manifest.tenant, manifest.session_id)
    links = links_of(manifest)
    wanted = {link.name for link in links}
    had = {row[0] for row in db.execute("SELECT object FROM names WHERE session = ?", (number,))}
    db.executemany(
        "DELETE FROM names WHERE object = ? AND session = ?",
        [(name, number) for name in had - wanted],
    )
    db.executemany("INSERT INTO names VALUES (?, ?)", [(name, number) for name in wanted - had])
    return links


def pin(db: sqlite3.Connection, tenant: str, session_id: str, pinned: bool) -> None:
    query = "UPDATE sessions SET pinned = ? WHERE tenant = ? AND session_id = ?"
    db.execute(query, (pinned, tenant, session_id))


def link(db: sqlite3.Connection, links: Sequence[Link], used_ms: int) -> None:
    """Objects learn their place in the chain, and wait for a manifest no more."""
    db.executemany(
        "UPDATE objects SET parent = ?, depth = ?, young_ms = 0, used_ms = max(used_ms, ?)"
        " WHERE name = ?",
        [(one.parent, one.depth, used_ms, one.name) for one in links],
    )
    raise_values(db, links)


def raise_values(db: sqlite3.Connection, links: Sequence[Link]) -> None:
    """Values of a chain as they are now: never lower than before, nor than a child's."""
    query = "SELECT value, hits, seconds, bytes FROM objects WHERE name = ?"
    time, before, now = clock(db), dict[bytes, float](), dict[bytes, float]()
    for one in links:
        row = db.execute(query, (one.name,)).fetchone()
        if row is not None:
            before[one.name] = row[0]
            now[one.name] = max(row[0], gdsf_value(time, *row[1:]))
    after = lifted(links, now)
    changed = [(value, name) for name, value in after.items() if value != before[name]]
    db.executemany("UPDATE objects SET value = ? WHERE name = ?", changed)


def lift_values(db: sqlite3.Connection) -> None:
    """Every parent's value is at least that of its best child."""
    best: dict[bytes, float] = {}
    changed = []
    query = "SELECT name, parent, value FROM objects ORDER BY depth DESC, substr(name, 1, 1) DESC"
    for name, parent, value in db.execute(query):
        higher = max(value, best.pop(name, value))
        best[parent] = max(higher, best.get(parent, higher))
        if higher != value:
            changed.append((higher, name))
    db.executemany("UPDATE objects SET value = ? WHERE name = ?", changed)


def links_between(db: sqlite3.Connection, names: Sequence[bytes]) -> list[Link]:
    """Of these objects, as far as they are known; parents before children."""
    query = "SELECT name, parent, depth FROM objects WHERE name = ?"
    found = (db.execute(query, (name,)).fetchone() for name in names)
    links = [Link(*row) for row in found if row is not None]
    return sorted(links, key=lambda one: (one.depth, one.is_leaf))


def candidates_query(holders: str, tenant: str) -> str:
    """Rows for candidate(), most expendable first; holders: a condition on that column."""
    own = " AND tenant = :tenant" if tenant else ""
    return (
        "SELECT name, bytes, value, used_ms, depth, parent, holders > 0,"
        " young_ms > :now OR leased_ms > :now OR EXISTS (SELECT 1 FROM names JOIN sessions"
        " ON id = session WHERE object = name AND pinned)"
        f" FROM objects WHERE {holders}{own} ORDER BY value, used_ms, depth DESC"
    )


def candidate(row: tuple[bytes, int, float, int, int, bytes, int, int]) -> Candidate:
    name, num_bytes, value, used_ms, depth, parent, is_named, is_held = row
    return Candidate(
        name,
        num_bytes,
        value,
        used_ms,
        depth=depth,
        is_leaf=is_leaf(name),
        parent=parent,
        is_named=bool(is_named),
        is_held=bool(is_held),
    )


def sessions(
    db: sqlite3.Connection, where: str, values: Sequence[str], limit: int
) -> list[SessionRow]:
    """By tenant and id; where: a condition, values: its parameters."""
    found = db.execute(
        "SELECT tenant, session_id, generation, tokens, num_kv, bytes + (SELECT"
        " coalesce(sum(o.bytes), 0) FROM names JOIN objects o ON name = object WHERE session = id),"
        " pinned, created_ms, used_ms, model, (SELECT count(*) FROM names WHERE session = id"
        f" AND substr(object, 1, 1) = {STATE}) FROM sessions WHERE {where}"
        " ORDER BY tenant, session_id LIMIT ?",
        (*values, limit),
    )
    return [session_row(row) for row in found]


def session_row(row: Sequence[Any]) -> SessionRow:
    fields: dict[str, Any] = dict(zip(SessionRow.__slots__, row, strict=True))
    return SessionRow(**fields | {"pinned": bool(fields["pinned"])})
