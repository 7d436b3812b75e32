"""Which manifest of a session holds, and who may write the next one.

    root/sessions/TENANT/ID/00000000000000000012.manifest     generation 12
                            00000000000000000011.manifest     the one before it
                            00000000000000000007.fence        empty; fence 7 was taken

A writer takes a fence first and commits with it; whoever takes a higher one shuts the earlier
writers out, whatever they do later. take, commit and drop exclude each other by the folder's lock.
"""

from collections.abc import Iterator
from pathlib import Path

from kv_tier.files import OsFiles
from kv_tier.format import SESSION_ID as SESSION_ID
from kv_tier.manifest import Manifest


class StaleFence(Exception):
    """Another writer was there: a higher fence was taken, or this generation is there already.

    Nothing was written.
    """

    def __init__(self, manifest: Manifest, reason: str) -> None:
        super().__init__(f"session {manifest.tenant}/{manifest.session_id}: {reason}")
        self.tenant = manifest.tenant
        self.session_id = manifest.session_id
        self.fence = manifest.fence


class BadName(ValueError):
    """A tenant or session id that is no name of ours: it never becomes a path."""


class Sessions:
    """All sessions under one root. Thread-safe; any number of processes at once.

    Every method that is given a tenant and a session id raises BadName for what is no name.
    """

    def __init__(self, root: Path, files: OsFiles | None = None) -> None:
        self.root = root

    def take(self, tenant: str, session_id: str, fence: int) -> int:
        """The right to commit, away from whoever had it: max(fence, known + 1), durable.

        fence  what the caller counted; a counter that was lost catches up here

        Raises DiskFull, DiskError.
        """
        raise NotImplementedError

    def head(self, tenant: str, session_id: str) -> Manifest | None:
        """The last commit that is whole; None: there is none. Damaged generations are passed over.

        Raises NewerVersion when the last whole one is of a later format, DiskError.
        """
        raise NotImplementedError

    def commit(self, manifest: Manifest) -> None:
        """Durable when it returns; the whole generation before it stays until the next commit.

        Raises StaleFence, DiskFull, DiskError; then the head is what it was.
        """
        raise NotImplementedError

    def drop(self, tenant: str, session_id: str) -> bool:
        """Forget the session. False: there was none. Whoever is writing can no longer commit.

        Its fence stays until sweep. Raises DiskFull, DiskError.
        """
        raise NotImplementedError

    def ids(self, tenant: str | None = None) -> Iterator[tuple[str, str]]:
        """(tenant, session id) of every session that has a manifest, in no order."""
        raise NotImplementedError

    def sweep(self, before_ms: int) -> int:
        """Take older temporary files and folders of dropped sessions away; their number."""
        raise NotImplementedError
