"""The books of the KV tier: who uses how many bytes, what was used when, what may go.

Only bookkeeping. What is on the disk is right without it, and it is made again from what is on the
disk (census) when it is lost. Both pools, the door and the command write it at once, each thread by
a connection of its own; never between two decode steps.

    bytes in all = objects + manifests + reservations       each by tenant, kept by triggers
"""

import os
import random
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

from kv_tier import ledger_rows as rows
from kv_tier.census import YOUNG_MS, Census, fill
from kv_tier.eviction import Candidate
from kv_tier.ledger_file import LedgerFile
from kv_tier.ledger_rows import Mark, Room, SessionRow, Shortage, Stored, Totals
from kv_tier.ledger_schema import SCHEMA, VERSION
from kv_tier.manifest import Manifest

LEASE_MS: Final = 60_000  # a fetched one for the engine to map it
RESERVED_MS: Final = 3_600_000  # a reservation that is older is nobody's
WINDOW: Final = 1024  # candidates that are looked at together


class Ledger:
    """root/ledger.sqlite. Every method raises DiskFull or DiskError when SQLite cannot write."""

    def __init__(self, root: Path, census: Census, now_ms: Callable[[], int]) -> None:
        self._census = census
        self._now_ms = now_ms
        self._reserved: dict[int, tuple[str, int]] = {}  # by this process, not yet used or released
        self._process = (os.getpid(), started_ticks(os.getpid()) or 0)
        self._file = LedgerFile(
            root / "ledger.sqlite", SCHEMA, VERSION, fill=self._fill, renew=self._renew
        )
        self._file.read(lambda _: None)  # made now, if it is not there

    def close(self) -> None:
        self._file.close()

    # Bytes: reserved before use.

    def reserve(self, tenant: str, num_bytes: int, room: Room) -> int | Shortage:
        """The number of a reservation, or what has to go first; then nothing is reserved."""
        number = random.getrandbits(62)

        def work(db: sqlite3.Connection) -> int | Shortage:
            shortage = rows.shortage(db, tenant, num_bytes, room)
            if shortage.all_bytes > 0 or shortage.tenant_bytes > 0:
                return shortage
            self._insert_reservation(db, number, tenant, num_bytes)
            return number

        answer = self._file.write(work)
        if answer == number:
            self._reserved[number] = (tenant, num_bytes)
        return answer

    def release(self, reservation: int) -> None:
        """What was reserved is not used, or was recorded."""
        self._reserved.pop(reservation, None)
        self._file.write(lambda db: rows.release(db, reservation))

    def release_dead(self) -> int:
        """Reservations of processes that are no more go; their number."""

        def work(db: sqlite3.Connection) -> int:
            found = db.execute("SELECT id, pid, started, made_ms FROM reservations").fetchall()
            oldest = self._now_ms() - RESERVED_MS
            dead = [(row[0],) for row in found if row[3] < oldest or not _runs(row[1], row[2])]
            db.executemany("DELETE FROM reservations WHERE id = ?", dead)
            return len(dead)

        return self._file.write(work)

    def totals(self, tenant: str = "") -> Totals:
        """Of a tenant; empty: of all. Without reservations."""
        return self._file.read(lambda db: rows.totals(db, tenant))

    def reserved_bytes(self) -> int:
        query = "SELECT coalesce(sum(bytes), 0) FROM reservations"
        return self._file.read(lambda db: int(db.execute(query).fetchone()[0]))

    # Objects: written, used, gone.

    def record(self, stored: Iterable[Stored], reservation: int | None = None) -> None:
        """They are on the disk, and wait for a manifest; the reservation was for them."""
        stored = list(stored)

        def work(db: sqlite3.Connection) -> None:
            now = self._now_ms()
            for one in stored:
                rows.insert_object(db, one, now, now + YOUNG_MS)
            if reservation is not None:
                rows.release(db, reservation)

        self._file.write(work)
        if reservation is not None:
            self._reserved.pop(reservation, None)

    def renew(self, names: Iterable[bytes]) -> None:
        """Those that still wait for a manifest do so for longer."""
        query = "UPDATE objects SET young_ms = ? WHERE name = ? AND young_ms > 0"
        young_ms = self._now_ms() + YOUNG_MS
        rows = [(young_ms, name) for name in names]
        if rows:
            self._file.write(lambda db: db.executemany(query, rows))

    def price(self, objects: Sequence[Stored], seconds_per_token: float) -> None:
        """What computing these took."""
        prices = [(seconds_per_token * one.num_tokens, one.name) for one in objects]

        def work(db: sqlite3.Connection) -> None:
            db.executemany("UPDATE objects SET seconds = ? WHERE name = ?", prices)
            rows.raise_values(db, rows.links_between(db, [one.name for one in objects]))

        self._file.write(work)

    def touch(self, names: Sequence[bytes]) -> None:
        """These were fetched: one chain from its first block on, and are about to be used."""

        def work(db: sqlite3.Connection) -> None:
            now = self._now_ms()
            db.executemany(
                "UPDATE objects SET hits = hits + 1, used_ms = ?, leased_ms = ? WHERE name = ?",
                [(now, now + LEASE_MS, name) for name in names],
            )
            rows.raise_values(db, rows.links_between(db, names))

        self._file.write(work)

    def forget(self, names: Iterable[bytes]) -> None:
        """They are not on the disk any more."""
        gone = [(name,) for name in names]
        self._file.write(lambda db: db.executemany("DELETE FROM objects WHERE name = ?", gone))

    def shelve(self, name: bytes) -> None:
        """It cannot be deleted now: let it be for a while."""
        query = "UPDATE objects SET leased_ms = ? WHERE name = ?"
        values = (self._now_ms() + RESERVED_MS, name)
        self._file.write(lambda db: db.execute(query, values))

    def look_through(self, tenant: str, visit: Callable[[list[Candidate]], bool]) -> None:
        """Show everything that might go, in windows, most expendable first, until visit says no.

        tenant  only this one's; empty: anybody's
        """
        now = self._now_ms()

        def work(db: sqlite3.Connection) -> None:
            for holders in ("holders = 0", "holders > 0"):
                query = rows.candidates_query(holders, tenant)
                found = db.execute(query, {"now": now, "tenant": tenant})
                while window := [rows.candidate(row) for row in found.fetchmany(WINDOW)]:
                    if not visit(window):
                        return

        self._file.read(work)

    def clock(self) -> float:
        """Of evictions; see eviction.py."""
        return self._file.read(rows.clock)

    def advance(self, clock: float) -> None:
        """The clock of evictions is at least this."""
        query = "UPDATE clock SET value = max(value, ?)"
        self._file.write(lambda db: db.execute(query, (clock,)))

    def orphans(self) -> list[bytes]:
        """Names of objects that no manifest names and that are young no more."""
        query = "SELECT name FROM objects WHERE holders = 0 AND max(young_ms, leased_ms) <= ?"
        now = self._now_ms()
        return self._file.read(lambda db: [row[0] for row in db.execute(query, (now,))])

    def names(self) -> set[bytes]:
        """Of every object it knows."""
        query = "SELECT name FROM objects"
        return self._file.read(lambda db: {row[0] for row in db.execute(query)})

    # Sessions.

    def commit(self, manifest: Manifest, reservation: int | None = None) -> None:
        """The session is so now; what it names has found its manifest."""

        def work(db: sqlite3.Connection) -> None:
            rows.link(db, rows.put_session(db, manifest), manifest.used_ms)
            if reservation is not None:
                rows.release(db, reservation)

        self._file.write(work)
        if reservation is not None:
            self._reserved.pop(reservation, None)

    def mend(self, session: tuple[str, str], mark: Mark | None, head: Manifest | None) -> None:
        """What a collector found of a (tenant, id): its head on the disk, None: it is gone.

        mark  as the ledger had it before, None: it had none. If that has changed since, somebody
              who knows better was here, and nothing is done.
        """

        def work(db: sqlite3.Connection) -> None:
            if rows.mark(db, *session) != mark:
                return
            if head is None:
                rows.drop_session(db, *session)
            else:
                rows.link(db, rows.put_session(db, head), head.used_ms)

        self._file.write(work)

    def manifests_bytes(self, tenant: str, session_id: str) -> int:
        """What a session's manifests are counted as; 0: there is none."""
        return self._file.read(lambda db: rows.manifests_bytes(db, tenant, session_id))

    def drop_session(self, tenant: str, session_id: str) -> list[bytes]:
        """It is gone; names of the objects that only it named, still on the disk."""
        now = self._now_ms()

        def work(db: sqlite3.Connection) -> list[bytes]:
            own = rows.own_objects(db, tenant, session_id, now)
            rows.drop_session(db, tenant, session_id)
            return own

        return self._file.write(work)

    def pin(self, tenant: str, session_id: str, pinned: bool) -> None:
        self._file.write(lambda db: rows.pin(db, tenant, session_id, pinned))

    def session(self, tenant: str, session_id: str) -> SessionRow | None:
        """What is known of one session; None: nothing."""
        where, values = "tenant = ? AND session_id = ?", (tenant, session_id)
        found = self._file.read(lambda db: rows.sessions(db, where, values, 1))
        return found[0] if found else None

    def list_sessions(
        self, tenant: str | None = None, *, limit: int = 100, after: tuple[str, str] = ("", "")
    ) -> list[SessionRow]:
        """By tenant and id, at most `limit`; after: (tenant, id) of the last row one has."""
        where, values = "(tenant, session_id) > (?, ?)", list(after)
        if tenant is not None:
            where, values = where + " AND tenant = ?", [*values, tenant]
        return self._file.read(lambda db: rows.sessions(db, where, values, limit))

    def marks(self) -> dict[tuple[str, str], Mark]:
        """Of every session that it knows, by (tenant, id)."""
        query = "SELECT tenant, session_id, generation, used_ms FROM sessions"
        return self._file.read(lambda db: {row[:2]: Mark(*row[2:]) for row in db.execute(query)})

    def used_between(self, begin_ms: int, end_ms: int) -> list[tuple[str, str, int]]:
        """(tenant, id, generation) of those used in [begin_ms, end_ms), the oldest first."""
        query = (
            "SELECT tenant, session_id, generation FROM sessions"
            " WHERE used_ms >= ? AND used_ms < ? ORDER BY used_ms"
        )
        return self._file.read(lambda db: db.execute(query, (begin_ms, end_ms)).fetchall())

    def unused_sessions(self, before_ms: int) -> list[tuple[str, str]]:
        """(tenant, id) of those that nobody used since, and nobody pinned."""
        query = "SELECT tenant, session_id FROM sessions WHERE used_ms < ? AND NOT pinned"
        return self._file.read(lambda db: db.execute(query, (before_ms,)).fetchall())

    def _fill(self, db: sqlite3.Connection) -> None:
        fill(db, self._census)

    def _renew(self, db: sqlite3.Connection) -> None:
        for number, (tenant, num_bytes) in list(self._reserved.items()):
            self._insert_reservation(db, number, tenant, num_bytes)

    def _insert_reservation(
        self, db: sqlite3.Connection, number: int, tenant: str, num_bytes: int
    ) -> None:
        values = (number, tenant, num_bytes, *self._process, self._now_ms())
        db.execute("INSERT OR IGNORE INTO reservations VALUES (?, ?, ?, ?, ?, ?)", values)


def started_ticks(pid: int) -> int | None:
    """When a process was started, in its system's ticks; None: there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    return int(stat[stat.rindex(b")") + 2 :].split()[19])


def _runs(pid: int, started: int) -> bool:
    return started_ticks(pid) == started
