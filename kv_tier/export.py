"""A session carried elsewhere: written to one file, read back on this node or on another.

    export   manifest and objects as they lie on the disk ──► FILE (bundle.py: its bytes)
    import   FILE ──► all of it checked ──► objects under this node's names ──► a session

Names are made with a node's salt and a tenant's name, so an imported session gets new ones; what
they name stays the same bytes. KV fits one set of weights and one arithmetic, so a session of
another is refused with the reason; its token log alone may be kept.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from kv_tier.bundle import BLOCK, MANIFEST, STATE, TAIL, BadExport, Reader, Record, Writer
from kv_tier.chain import BLOCK_TOKENS, Chain
from kv_tier.files import DiskError
from kv_tier.format import CorruptFile, Kind
from kv_tier.manifest import Checkpoint, Manifest, decode_manifest, encode_manifest
from kv_tier.names import NO_KEY, Link, kind_and_key, links_of, name_of
from kv_tier.objects import Source
from kv_tier.open_object import Missing, OpenObject, open_file
from kv_tier.prefix import Sizes
from kv_tier.tier import KvTier, wall_ms

KIND_OF: Final[dict[int, Kind]] = {BLOCK: "block", TAIL: "tail", STATE: "state"}
TYPE_OF: Final[dict[Kind, int]] = {kind: type_ for type_, kind in KIND_OF.items()}
PUT_BYTES: Final = 64 << 20  # written together, so that a session larger than RAM can be read

Progress = Callable[[int, int], None]  # bytes done, bytes in all


class CannotExport(Exception):
    """Why a session was not written to a file, in words."""


class CannotImport(Exception):
    """Why a sound export is not taken, in words."""


@dataclass(frozen=True, slots=True)
class Node:
    """What KV must have been made with to be of use here."""

    model: str
    weights_digest: str
    arithmetic_version: str
    sizes: Sizes


@dataclass(frozen=True, slots=True)
class Carried:
    """What went over.

    objects  written; an object that was there already counts, too
    left     objects that the manifest names and nobody has whole: they will be computed again
    """

    manifest: Manifest
    objects: int
    left: int
    file_bytes: int


def misfit(manifest: Manifest, node: Node) -> str | None:
    """Why a session's KV is of no use on this node, in words; None: it is."""
    if manifest.weights_digest != node.weights_digest:
        made = f"{manifest.model!r} (weights {manifest.weights_digest})"
        return f"made with {made}, this node serves {node.model!r} (weights {node.weights_digest})"
    if manifest.arithmetic_version != node.arithmetic_version:
        versions = (
            f"{manifest.arithmetic_version}, this node computes with {node.arithmetic_version}"
        )
        return f"made with version {versions} of the arithmetic"
    if manifest.fingerprint != node.sizes.fingerprint:
        return "made with another layout of KV or state"
    return None


# --- export ---


def export_session(
    tier: KvTier, tenant: str, session_id: str, path: Path, progress: Progress | None = None
) -> Carried:
    """Write a session to a new file, readable by its owner alone.

    What is still in a pool's RAM only is not in it.

    Raises CannotExport, BadName, DiskError.
    """
    manifest = tier.sessions.head(tenant, session_id)
    if manifest is None:
        raise CannotExport(f"there is no session {session_id!r}")
    aside = path.with_name(f".{path.name}.part")
    try:
        if path.exists():
            raise FileExistsError
        with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            writer = Writer(file)
            objects, left = _write_all(writer, tier, manifest, progress)
            writer.close()
        os.link(aside, path)  # unlike a rename it never replaces a file that came meanwhile
        return Carried(manifest, objects, left, path.stat().st_size)
    except FileExistsError as error:
        there = error.filename or path
        raise CannotExport(f"{there} is there already: move it away, or name another") from None
    except OSError as error:
        raise DiskError(path, error) from error
    finally:
        aside.unlink(missing_ok=True)


def _write_all(
    writer: Writer, tier: KvTier, manifest: Manifest, progress: Progress | None
) -> tuple[int, int]:
    """How many objects were written, and how many there were not."""
    writer.add(MANIFEST, [encode_manifest(manifest)])
    links = links_of(manifest)
    left = 0
    for done, link in enumerate(links):
        kind, key = kind_and_key(link.name)
        opened = _sound(tier, kind, key)
        if opened is None:
            left += 1
        else:
            payload = opened.view().data
            writer.add(TYPE_OF[kind], [payload], key=key, num_tokens=link.num_tokens)
            opened.close()
        if progress:
            progress(done + 1, len(links))
    return len(links) - left, left


def _sound(tier: KvTier, kind: Kind, key: bytes) -> OpenObject | None:
    """An object that was read in full; None when it is gone or damaged."""
    try:
        opened = open_file(tier.objects.path(kind, key))
    except (Missing, CorruptFile):
        return None
    try:
        opened.verify()
    except CorruptFile:
        opened.close()
        return None
    return opened


# --- import ---


def import_session(
    tier: KvTier,
    path: Path,
    tenant: str,
    session_id: str | None,
    node: Node | None,
    progress: Progress | None = None,
) -> Carried:
    """Make a session of a file. Nothing of it can be seen before all of it was checked.

    session_id  None: as it was called
    node        what the KV must fit; None: keep the token log alone, whatever made it

    Raises BadExport, CannotImport, BadName, DiskFull, DiskError.
    """
    try:
        reader = Reader(path)
    except OSError as error:
        raise CannotImport(f"{path}: {error.strerror}") from error
    try:
        manifest, records = _read_all(reader, progress)
        target = session_id or manifest.session_id
        if tier.sessions.head(tenant, target) is not None:
            raise CannotImport(f"there is a session {target!r} already: import it under another id")
        log = replace(manifest, tenant=tenant, session_id=target, generation=1, used_ms=0)
        if node is None:
            kept = replace(log, num_kv=0, blocks=(), tail=None, checkpoints=())
            return _committed(tier, kept, 0, 0, reader.file_bytes)
        reason = misfit(manifest, node)
        if reason is not None:
            raise CannotImport(f"{path}: {reason}; --log-only keeps its token log alone")
        _check_sizes(reader, records, node.sizes)
        renamed = _renamed(log, tier.chain(tenant, manifest.fingerprint))
        for group in _groups(_sources(reader, records, manifest, renamed)):
            tier.put(tenant, group)
        left = len(links_of(manifest)) - len(records)
        return _committed(tier, renamed, len(records), left, reader.file_bytes)
    except OSError as error:
        raise DiskError(path, error) from error
    finally:
        reader.close()


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


def _renamed(log: Manifest, chain: Chain) -> Manifest:
    """The same session under the names of this node and this tenant."""
    token_ids, num_kv = log.token_ids, log.num_kv
    points = (point.position for point in log.checkpoints)
    return replace(
        log,
        blocks=tuple(chain.block_keys(token_ids[:num_kv])),
        tail=chain.key_at(token_ids, num_kv) if num_kv % BLOCK_TOKENS else None,
        checkpoints=tuple(Checkpoint(p, chain.key_at(token_ids, p)) for p in points),
    )


def _check_sizes(reader: Reader, records: list[Record], sizes: Sizes) -> None:
    """Raises BadExport."""
    for record in records:
        kind, num_tokens = KIND_OF[record.type], record.num_tokens
        if record.length != sizes.payload_bytes(kind, num_tokens):
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
            parent=kind_and_key(link.parent)[1] if link.parent else NO_KEY,
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
    fence = tier.sessions.take(manifest.tenant, manifest.session_id, 0)
    told = replace(manifest, fence=fence, used_ms=wall_ms())
    tier.commit(told)
    return Carried(told, objects, left, file_bytes)
