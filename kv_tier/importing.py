"""A session is made of an exported file, once all of it was checked.

Names are made with a node's salt and a tenant's name, so an imported session gets new ones; what
they name stays the same bytes. KV fits one set of weights and one arithmetic, so a session of
another is refused with the reason; its token log alone may be kept.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from kv_tier.bundle import MANIFEST, BadExport, Reader, Record
from kv_tier.carried import KIND_OF, Carried, Node, Progress, misfit
from kv_tier.files import DiskError
from kv_tier.format import CorruptFile
from kv_tier.manifest import Manifest, decode_manifest
from kv_tier.names import Link, kind_and_key, links_of, name_of, parent_key
from kv_tier.objects import Source
from kv_tier.renamed import renamed
from kv_tier.tier import KvTier, wall_ms

PUT_BYTES: Final = 64 << 20  # written together, so that a session larger than RAM can be read


class CannotImport(Exception):
    """Why a sound export is not taken, in words."""


def import_session(
    tier: KvTier,
    path: Path,
    tenant: str,
    session_id: str | None,
    node: Node | None,
    progress: Progress | None = None,
    *,
    fence_of: Callable[[str, str], int] = lambda tenant, session_id: 0,
) -> Carried:
    """Make a session of a file. Nothing of it can be seen before all of it was checked.

    session_id  None: as it was called
    node        what the KV must fit; None: keep the token log alone, whatever made it
    fence_of    of tenant and id: a fence at least, where others know of higher ones than we

    Raises BadExport, CannotImport, BadName, DiskFull, DiskError.
    """
    try:
        reader = Reader(path)
    except OSError as error:
        raise CannotImport(f"{path}: {error.strerror}") from error
    try:
        manifest, records = _read_all(reader, progress)
        log = _log_of(tier, manifest, tenant, session_id or manifest.session_id)
        log = replace(log, fence=fence_of(tenant, log.session_id))
        if node is None:
            kept = replace(log, num_kv=0, blocks=(), tail=None, checkpoints=())
            return _committed(tier, kept, 0, 0, reader.file_bytes)
        _check_fit(reader, manifest, records, node)
        own = renamed(log, tier.chain(tenant, manifest.fingerprint))
        for group in _groups(_sources(reader, records, manifest, own)):
            tier.put(tenant, group)
        left = len(links_of(manifest)) - len(records)
        return _committed(tier, own, len(records), left, reader.file_bytes)
    except OSError as error:
        raise DiskError(path, error) from error
    finally:
        reader.close()


def _log_of(tier: KvTier, manifest: Manifest, tenant: str, session_id: str) -> Manifest:
    """The first generation of the new session.   Raises CannotImport, BadName."""
    if tier.sessions.head(tenant, session_id) is not None:
        raise CannotImport(f"there is a session {session_id!r} already: import it under another id")
    return replace(manifest, tenant=tenant, session_id=session_id, generation=1, used_ms=0)


def _read_all(reader: Reader, progress: Progress | None) -> tuple[Manifest, list[Record]]:
    """The manifest, and where the objects that it names lie; every byte of the file was read."""
    records: list[Record] = []
    for record in reader.verified():
        records.append(record)
        if progress:
            progress(record.offset + record.length, reader.file_bytes)
    if not records or records[0].type != MANIFEST:
        raise BadExport(reader.path, "does not begin with a manifest")
    try:
        manifest = decode_manifest(bytes(reader.payload(records[0])), reader.path)
    except CorruptFile as error:
        raise BadExport(reader.path, error.reason) from error
    expected = {(link.name, link.num_tokens) for link in links_of(manifest)}
    found = [(_name_of(record), record.num_tokens) for record in records[1:]]
    if len(set(found)) != len(found) or not expected.issuperset(found):
        raise BadExport(reader.path, "holds objects that its manifest does not name")
    return manifest, records[1:]


def _check_fit(reader: Reader, manifest: Manifest, records: list[Record], node: Node) -> None:
    """Raises CannotImport, BadExport."""
    reason = misfit(manifest, node)
    if reason is not None:
        raise CannotImport(f"{reader.path}: {reason}; --log-only keeps its token log alone")
    for record in records:
        kind, num_tokens = KIND_OF[record.type], record.num_tokens
        if record.length != node.sizes.payload_bytes(kind, num_tokens):
            raise BadExport(reader.path, f"a {kind} of {num_tokens} tokens has another size here")


def _name_of(record: Record) -> bytes:
    """What the ledger calls it; empty: it is no object."""
    kind = KIND_OF.get(record.type)
    return name_of(kind, record.key) if kind else b""


def _sources(
    reader: Reader, records: list[Record], old: Manifest, new: Manifest
) -> Iterator[Source]:
    links = _new_links(old, new)
    for record in records:
        link = links[_name_of(record)]
        kind, key = kind_and_key(link.name)
        yield Source(
            key=key,
            kind=kind,
            num_tokens=record.num_tokens,
            parts=(reader.payload(record),),
            fingerprint=new.fingerprint,
            tenant=new.tenant,
            parent=parent_key(link),
        )


def _new_links(old: Manifest, new: Manifest) -> dict[bytes, Link]:
    """By the names that they had."""
    pairs = zip(links_of(old), links_of(new), strict=True)
    return {before.name: after for before, after in pairs}


def _groups(sources: Iterator[Source]) -> Iterator[list[Source]]:
    """Sources, so many at once as PUT_BYTES allows, one at least."""
    group: list[Source] = []
    num_bytes = 0
    for source in sources:
        group.append(source)
        num_bytes += source.payload_bytes
        if num_bytes >= PUT_BYTES:
            yield group
            group, num_bytes = [], 0
    if group:
        yield group


def _committed(
    tier: KvTier, manifest: Manifest, objects: int, left: int, file_bytes: int
) -> Carried:
    fence = tier.sessions.take(manifest.tenant, manifest.session_id, manifest.fence)
    told = replace(manifest, fence=fence, used_ms=wall_ms())
    tier.commit(told)
    return Carried(told, objects, left, file_bytes)
