"""A session is written to one file: its manifest, and what it names as it lies on the disk."""

import os
from contextlib import closing
from pathlib import Path
from tempfile import NamedTemporaryFile

from kv_tier.bundle import MANIFEST, Writer
from kv_tier.carried import TYPE_OF, Carried, Progress
from kv_tier.fetch import is_bad
from kv_tier.files import DiskError
from kv_tier.format import CorruptFile, Kind
from kv_tier.loader import verify_one
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
    try:
        if path.exists():
            raise FileExistsError
        with NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", suffix=".part") as aside:
            writer = Writer(aside.file)
            objects, left = _write_all(writer, tier, manifest, progress)
            writer.close()
            os.link(aside.name, path)  # unlike a rename it never replaces what came meanwhile
        return Carried(manifest, objects, left, path.stat().st_size)
    except FileExistsError:
        reason = f"{path} is there already: move it away, or name another"
        raise CannotExport(reason) from None
    except OSError as error:
        raise DiskError(path, error) from error


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
            with closing(opened):
                payload = opened.view().data
                writer.add(TYPE_OF[kind], [payload], key=key, num_tokens=link.num_tokens)
        if progress:
            progress(done + 1, len(links))
    return len(links) - left, left


def _sound(tier: KvTier, kind: Kind, key: bytes) -> OpenObject | None:
    """An object that was read in full; None when it is gone or damaged. Raises DiskError."""
    opened = None
    try:
        opened = open_file(tier.objects.path(kind, key))
        verify_one(opened)
    except (Missing, CorruptFile, DiskError) as failure:
        if opened is not None:
            opened.close()
        if isinstance(failure, DiskError) and not is_bad(failure):
            raise
        return None
    return opened
