"""The tables of the ledger, and the triggers that keep its sums.

objects ◄── names ──► sessions        names: which session's manifest names which object
   └─ totals, by tenant and in all ('')      reservations: bytes that somebody is about to write
"""

from typing import Final

VERSION: Final = 1
SCHEMA: Final = """
CREATE TABLE objects (
    name BLOB PRIMARY KEY,          -- names.name_of
    tenant TEXT NOT NULL,
    bytes INTEGER NOT NULL,         -- on the disk
    tokens INTEGER NOT NULL,
    parent BLOB NOT NULL,           -- name of the block before it; x'' none, or nobody told
    depth INTEGER NOT NULL,         -- tokens before its end; 0: no manifest named it yet
    seconds REAL NOT NULL,          -- that computing it takes
    hits INTEGER NOT NULL,
    value REAL NOT NULL,            -- eviction.gdsf_value when used last, at least its children's
    used_ms INTEGER NOT NULL,
    young_ms INTEGER NOT NULL,      -- until then its manifest may be on the way
    leased_ms INTEGER NOT NULL,     -- until then somebody may be about to map it
    holders INTEGER NOT NULL DEFAULT 0  -- sessions that name it
) WITHOUT ROWID;
CREATE INDEX objects_of_all ON objects (value, used_ms, depth DESC);
CREATE INDEX objects_of_tenant ON objects (tenant, value, used_ms, depth DESC);
CREATE INDEX objects_of_nobody ON objects (used_ms) WHERE holders = 0;

CREATE TABLE sessions (
    id INTEGER PRIMARY KEY,
    tenant TEXT NOT NULL,
    session_id TEXT NOT NULL,
    generation INTEGER NOT NULL,
    tokens INTEGER NOT NULL,
    num_kv INTEGER NOT NULL,
    bytes INTEGER NOT NULL,         -- of its manifests
    model TEXT NOT NULL,
    created_ms INTEGER NOT NULL,
    used_ms INTEGER NOT NULL,
    pinned INTEGER NOT NULL DEFAULT 0,
    UNIQUE (tenant, session_id)
);
CREATE INDEX sessions_by_use ON sessions (used_ms);

CREATE TABLE names (
    object BLOB NOT NULL,
    session INTEGER NOT NULL,
    PRIMARY KEY (object, session)
) WITHOUT ROWID;
CREATE INDEX names_of_session ON names (session);

CREATE TABLE reservations (
    id INTEGER PRIMARY KEY,
    tenant TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    pid INTEGER NOT NULL,
    started INTEGER NOT NULL,       -- of the process, in its system's ticks
    made_ms INTEGER NOT NULL
);

CREATE TABLE totals (
    tenant TEXT PRIMARY KEY,        -- '': all of them
    bytes INTEGER NOT NULL,
    objects INTEGER NOT NULL,
    sessions INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE clock (value REAL NOT NULL);
INSERT INTO clock VALUES (0);

CREATE TRIGGER object_comes AFTER INSERT ON objects BEGIN
    UPDATE objects SET holders = (SELECT count(*) FROM names WHERE object = new.name)
        WHERE name = new.name;
    INSERT INTO totals VALUES (new.tenant, new.bytes, 1, 0), ('', new.bytes, 1, 0)
        ON CONFLICT DO UPDATE SET bytes = bytes + excluded.bytes, objects = objects + 1;
END;
CREATE TRIGGER object_goes AFTER DELETE ON objects BEGIN
    UPDATE totals SET bytes = bytes - old.bytes, objects = objects - 1
        WHERE tenant IN (old.tenant, '');
END;
CREATE TRIGGER session_comes AFTER INSERT ON sessions BEGIN
    INSERT INTO totals VALUES (new.tenant, new.bytes, 0, 1), ('', new.bytes, 0, 1)
        ON CONFLICT DO UPDATE SET bytes = bytes + excluded.bytes, sessions = sessions + 1;
END;
CREATE TRIGGER session_changes AFTER UPDATE OF bytes ON sessions BEGIN
    UPDATE totals SET bytes = bytes + new.bytes - old.bytes WHERE tenant IN (old.tenant, '');
END;
CREATE TRIGGER session_goes AFTER DELETE ON sessions BEGIN
    UPDATE totals SET bytes = bytes - old.bytes, sessions = sessions - 1
        WHERE tenant IN (old.tenant, '');
    DELETE FROM names WHERE session = old.id;
END;
CREATE TRIGGER name_comes AFTER INSERT ON names BEGIN
    UPDATE objects SET holders = holders + 1 WHERE name = new.object;
END;
CREATE TRIGGER name_goes AFTER DELETE ON names BEGIN
    UPDATE objects SET holders = holders - 1 WHERE name = old.object;
END;
"""
