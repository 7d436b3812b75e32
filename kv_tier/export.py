"""A session is written to one file: its manifest, and what it names as it lies on the disk."""

import os
from pathlib import Path

from kv_tier.bundle import MANIFEST, Writer
from kv_tier.carried import TYPE_OF, Carried, Progress
from kv_tier.files import DiskError
from kv_tier.format import CorruptFile, Kind
from kv_tier.manifest import Manifest, encode_manifest
from kv_tier.names import kind_and_key, links_of
from kv_tier.open_object import Missing, OpenObject, open_file
from kv_tier.tier import KvTier


class CannotExport(Exception):
    """Why a session was not written to a file, in words."""


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
