"""A session comes from the object store: its newest manifest, then what is missing of its objects.

Whatever is wrong there, something older is taken or nothing: nothing that arrived is used before
all of its bytes agree with their checksums and with what was asked for.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import structlog

from kv_tier.files import DiskError
from kv_tier.fork import kv_before
from kv_tier.format import CorruptFile, NewerVersion, file_bytes
from kv_tier.manifest import Manifest, decode_manifest
from kv_tier.names import Link, kind_and_key
from kv_tier.objects import Source
from kv_tier.prefix import Sizes
from kv_tier.remote.bucket import Bucket, NotThere
from kv_tier.remote.parcel import unpacked
from kv_tier.remote.places import (
    Version,
    object_place,
    place_of,
    sessions_of,
    version_in,
    version_of,
)
from kv_tier.remote.remote import Remote, groups_of
from kv_tier.renamed import pairs_of, renamed

log = structlog.get_logger(part="kv")
TRIES: Final = 2  # of an object that arrives damaged
Pair = tuple[Link, Link]


@dataclass(frozen=True, slots=True)
class Pulled:
    """fetched: objects; left: those that are not there, damaged, or without room here."""

    fetched: int = 0
    left: int = 0
    num_bytes: int = 0


def versions(bucket: Bucket, tenant: str, session_id: str) -> list[Version]:
    """Of the manifests that are there; the latest first.   Raises StoreError."""
    found = bucket.list(sessions_of(tenant, session_id))
    told = (version_in(one.name) for one in found)
    return sorted((version for version in told if version), reverse=True)


def newest(remote: Remote, tenant: str, session_id: str) -> Manifest | None:
    """The latest manifest that is whole, under the names of this node.   Raises StoreError."""
    for version in versions(remote.bucket, tenant, session_id):
        found = read_manifest(remote.bucket, tenant, session_id, version)
        if found is not None:
            return renamed(found, remote.tier.chain(tenant, found.fingerprint))
    return None


def read_manifest(
    bucket: Bucket, tenant: str, session_id: str, version: Version, *, passes_newer: bool = True
) -> Manifest | None:
    """As it lies there; None: gone, damaged, or another's.

    passes_newer  one of a later format is None as well; False: NewerVersion is raised

    Raises StoreError.
    """
    place = place_of(tenant, session_id, version)
    try:
        manifest = decode_manifest(bytes(bucket.get(place)), Path(place))
    except NotThere:
        return None
    except CorruptFile as error:
        if isinstance(error, NewerVersion) and not passes_newer:
            raise
        log.warning("a manifest in the object store cannot be used", error=str(error))
        return None
    said = (manifest.tenant, manifest.session_id, version_of(manifest))
    return manifest if said == (tenant, session_id, version) else None


def pull(
    remote: Remote,
    own: Manifest,
    sizes: Sizes,
    *,
    end: int | None = None,
    stops: Callable[[], bool] = lambda: False,
) -> Pulled:
    """Bring what is missing here of a session's KV, in the order in which it is of use.

    own    its manifest, by this node's names
    sizes  of the running model
    end    tokens that are wanted at most; None: all
    stops  asked between objects

    Raises StoreError. What cannot be written here, or is not there whole, is left.
    """
    if own.fingerprint != sizes.fingerprint:
        return Pulled()
    wanted = useful(own, len(own.token_ids) if end is None else end)
    shared = renamed(wanted, remote.chain(own.tenant, own.fingerprint))
    pairs = [pair for pair in pairs_of(wanted, shared) if not _is_here(remote, pair)]
    fetched = num_bytes = 0
    for group in groups_of(pairs, lambda pair: file_bytes(_payload_bytes(sizes, pair))):
        if stops():
            break
        begin = time.monotonic()
        come = remote.each(lambda pair: _fetch(remote, own, sizes, pair), group)
        sources = [source for source in come if source is not None]
        amount = _keep(remote, own.tenant, sources)
        seconds = time.monotonic() - begin
        remote.measured(amount, seconds)
        remote.count(
            fetched_objects=len(sources) if amount else 0, fetched_bytes=amount, fetched_s=seconds
        )
        if not amount:
            break
        fetched, num_bytes = fetched + len(sources), num_bytes + amount
    return Pulled(fetched, len(pairs) - fetched, num_bytes)


def useful(manifest: Manifest, end: int) -> Manifest:
    """A manifest with that of its KV alone which helps a prompt that begins with `end` of its
    tokens: its newest state, and KV up to there.
    """
    kept = kv_before(manifest, end)
    newest_first = sorted(kept["checkpoints"], key=lambda point: -point.position)[:1]
    return replace(manifest, **kept | {"checkpoints": tuple(newest_first)})


def missing_bytes(remote: Remote, own: Manifest, sizes: Sizes, end: int) -> int:
    """What a pull would fetch, if all of it is there."""
    wanted = useful(own, end)
    pairs = [pair for pair in pairs_of(wanted, wanted) if not _is_here(remote, pair)]
    return sum(file_bytes(_payload_bytes(sizes, pair)) for pair in pairs)


def _is_here(remote: Remote, pair: Pair) -> bool:
    return remote.tier.objects.has(*kind_and_key(pair[0].name))


def _payload_bytes(sizes: Sizes, pair: Pair) -> int:
    kind, _ = kind_and_key(pair[0].name)
    return sizes.payload_bytes(kind, pair[0].num_tokens)


def _fetch(remote: Remote, own: Manifest, sizes: Sizes, pair: Pair) -> Source | None:
    """None: it is not there, or arrives damaged again and again; then it goes, to be sent anew."""
    mine, theirs = pair
    place = object_place(own.tenant, theirs.name)
    payload_bytes = _payload_bytes(sizes, pair)
    for _ in range(TRIES):
        try:
            data = remote.bucket.get(place)
            return unpacked(
                data, own.tenant, own.fingerprint, payload_bytes, shared=theirs, own=mine
            )
        except NotThere:
            with suppress(DiskError):
                remote.known.forget(theirs.name)
            return None
        except CorruptFile as error:
            log.warning("an object of the store is damaged", error=str(error))
    remote.count(damaged=1)
    remote.bucket.delete(place)
    with suppress(DiskError):
        remote.known.forget(theirs.name)
    return None


def _keep(remote: Remote, tenant: str, sources: Sequence[Source]) -> int:
    """Bytes on the disk; 0: there is no room for them, or nothing came."""
    try:
        return remote.tier.put(tenant, sources)
    except DiskError as error:
        log.warning("what the object store has is not kept here", error=str(error))
        return 0
