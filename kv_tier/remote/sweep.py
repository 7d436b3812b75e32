"""What nobody needs goes from the object store: old manifests, and objects that none names.

    list manifests ─► those of deleted or long unused sessions go ─► mark what the others name
    list objects ─► old, and not marked ─► mark once more ─► still not marked: they go

An object may be on its way to a manifest, so only what was written KEEP_MS ago goes: far longer
than a push lasts, and than it believes in an object that it did not write (push.FRESH_MS). A list
that lags behind is looked at twice; should it still be wrong, KV is computed again, and sent again.
One collector at a time is enough, which is for its caller to see to; two do no harm.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, cast

from kv_tier.format import Kind
from kv_tier.manifest import Manifest
from kv_tier.names import links_of, name_of
from kv_tier.remote.bucket import Found
from kv_tier.remote.places import MANIFEST, OBJECT, Version
from kv_tier.remote.pull import read_manifest
from kv_tier.remote.push import FRESH_MS
from kv_tier.remote.quota import write_usage
from kv_tier.remote.remote import Remote

KEEP_MS: Final = 48 * 3_600_000
assert KEEP_MS > 3 * FRESH_MS, "a push outlives what it relies on"

Session = tuple[str, str]  # tenant, id
IsDeleted = Callable[[str, str, int], bool]  # tenant, id, fence of a manifest


@dataclass(frozen=True, slots=True)
class Swept:
    """sessions: manifests that went; num_bytes: of objects; kept_bytes: by tenant, of the others"""

    sessions: int = 0
    objects: int = 0
    num_bytes: int = 0
    kept_bytes: tuple[tuple[str, int], ...] = ()


def sweep(
    remote: Remote, *, ttl_ms: int = 0, is_deleted: IsDeleted = lambda *session: False
) -> Swept:
    """ttl_ms: 0 is for ever.

    Raises StoreError, what is_deleted raises, and NewerVersion: who does not know what a manifest
    names takes nothing away.
    """
    num_sessions = _drop_old(remote, ttl_ms, is_deleted)
    oldest = remote.now_ms() - KEEP_MS
    objects = list(_objects(remote))
    marked = _marked(remote)
    unnamed = [(found, name) for found, name in objects if name not in marked]
    old = [(found, name) for found, name in unnamed if found.changed_ms < oldest]
    again = _marked(remote) if old else set()
    gone = [found for found, name in old if name not in again]
    remote.each(lambda found: remote.bucket.delete(found.name), gone)
    remote.count(swept_objects=len(gone))
    remote.known.tidy(remote.now_ms())
    kept = _bytes_by_tenant({one.name: one for one, _ in objects}, {one.name for one in gone})
    write_usage(remote, kept)
    return Swept(num_sessions, len(gone), sum(one.num_bytes for one in gone), kept)


def forget(remote: Remote, tenant: str, session_id: str) -> None:
    """A session was deleted: its manifests go, at once.   Raises StoreError, DiskError."""
    for found, session, _ in _manifests(remote, f"/{tenant}/{session_id}"):
        if session == (tenant, session_id):
            remote.bucket.delete(found.name)
    remote.known.forget_session(tenant, session_id)


def _drop_old(remote: Remote, ttl_ms: int, is_deleted: IsDeleted) -> int:
    """Manifests that nobody may use any more; their number."""
    too_old = remote.now_ms() - ttl_ms if ttl_ms else 0
    num_dropped = 0
    for found, session, (fence, _) in list(_manifests(remote)):
        if found.changed_ms < too_old or is_deleted(*session, fence):
            remote.bucket.delete(found.name)
            num_dropped += 1
    return num_dropped


def _marked(remote: Remote) -> set[tuple[str, bytes]]:
    """(tenant, name) of every object that a manifest names."""
    marked: set[tuple[str, bytes]] = set()
    for _, (tenant, session_id), version in list(_manifests(remote)):
        manifest = read_manifest(remote.bucket, tenant, session_id, version, passes_newer=False)
        if manifest is None:  # gone since: for a later one, if it was not deleted
            manifest = _later(remote, tenant, session_id, version)
        if manifest is not None:
            marked |= {(tenant, link.name) for link in links_of(manifest)}
    return marked


def _later(remote: Remote, tenant: str, session_id: str, than: Version) -> Manifest | None:
    for _, session, version in _manifests(remote, f"/{tenant}/{session_id}"):
        if session == (tenant, session_id) and version > than:
            found = read_manifest(remote.bucket, tenant, session_id, version)
            if found is not None:
                return found
    return None


def _manifests(remote: Remote, below: str = "") -> Iterator[tuple[Found, Session, Version]]:
    for found in remote.bucket.list(f"sessions{below}"):
        named = MANIFEST.fullmatch(found.name)
        if named:
            yield found, (named[1], named[2]), (int(named[3]), int(named[4]))


def _objects(remote: Remote) -> Iterator[tuple[Found, tuple[str, bytes]]]:
    for found in remote.bucket.list("objects"):
        named = OBJECT.fullmatch(found.name)
        if named:
            name = name_of(cast(Kind, named[3]), bytes.fromhex(named[2]))
            yield found, (named[1], name)


def _bytes_by_tenant(objects: dict[str, Found], without: set[str]) -> tuple[tuple[str, int], ...]:
    sums: Counter[str] = Counter()
    for name, one in objects.items():
        if name not in without:
            sums[name.split("/")[1]] += one.num_bytes
    return tuple(sorted(sums.items()))
