"""A session whose last turn is not in this node's files is brought from where it is.

    Redis: fence of its last commit ─► are our files as new? ── yes ─► they are it
                                        │ no
           object store, as new ─► its manifest, and its KV
           token log in Redis ───► the log; of its KV what the store, or our old files, have
           neither ──────────────► None: as if its files were gone

A fence is given out once in a fleet, each higher than all before, and every commit names its own:
files with a lower one than the last commit's are stale, whatever they say, and are not answered
from; files with a higher one were committed by who died before it could say so.
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from kv_tier.format import CorruptFile
from kv_tier.manifest import Manifest
from kv_tier.remote.pull import newest
from workers.log import logger
from workers.session.backing import Backing
from workers.session.token_log import unpacked
from workers.session.turn import kv_of
from workers.wire import full_id
from workers.worker_store import WorkerStore

log = logger("session")
MANIFEST_S: Final = 15.0  # what a request waits for a manifest


@dataclass(frozen=True, slots=True)
class Recalled:
    """manifest: None, nobody has it; trouble: why the store that may have it gave no answer."""

    manifest: Manifest | None
    trouble: str = ""


class Recall:
    """Thread-safe."""

    def __init__(self, store: WorkerStore, backing: Backing) -> None:
        self.store, self.backing = store, backing
        self._counts = dict.fromkeys(("recalled_store", "recalled_log", "recall_failed"), 0.0)
        self._guard = threading.Lock()

    def recall(
        self, tenant: str, session_id: str, head: Manifest | None, noted: Mapping[str, Any]
    ) -> Recalled:
        """The session as it was committed last.   head: what our files have, which is older

        Its generation is above head's, so that what follows it can be committed here.
        Raises RedisError.
        """
        stored, trouble = self._stored(tenant, session_id)
        if stored is not None and is_void(stored, noted):
            stored = None
        if stored is not None and is_current(stored, noted):
            self._count("recalled_store")
            return Recalled(_above(head, stored))
        logged = self._logged(tenant, session_id)
        if logged is None or not is_current(logged, noted):
            self._count("recall_failed")
            return Recalled(None, trouble)
        self._count("recalled_log")
        return Recalled(_above(head, with_kv_of(logged, stored, head)))

    def stats(self) -> dict[str, float]:
        """How many sessions came from where, since this process began."""
        with self._guard:
            return dict(self._counts)

    def _stored(self, tenant: str, session_id: str) -> tuple[Manifest | None, str]:
        """The newest manifest in the object store; and what is wrong with the store, if anything.

        It may be of other weights, and older than the last commit.
        """
        look = partial(newest, tenant=tenant, session_id=session_id)
        return self.backing.ask_store(look, MANIFEST_S)

    def _logged(self, tenant: str, session_id: str) -> Manifest | None:
        key = self.store.keys.session_log(full_id(tenant, session_id))
        data = self.store.redis.get(key)
        if not isinstance(data, bytes):
            return None
        try:
            return unpacked(data, tenant, session_id)
        except CorruptFile as error:
            log.warning("a session's log in Redis cannot be used", error=str(error))
            return None

    def _count(self, name: str) -> None:
        with self._guard:
            self._counts[name] += 1


def is_current(head: Manifest | None, noted: Mapping[str, Any]) -> bool:
    """Whether it holds the last turn that was noted, or a later one.

    noted: the session's hash; one that knows of no commit makes everything current
    """
    if "committed" in noted:
        return head is not None and head.fence >= int(noted["committed"])
    if "generation" in noted:  # noted before there were fences of commits
        return head is not None and head.generation >= int(noted["generation"])
    return True


def is_void(head: Manifest, noted: Mapping[str, Any]) -> bool:
    """Whether the session was deleted since."""
    return head.fence <= int(noted.get("dropped", 0))


def with_kv_of(logged: Manifest, *others: Manifest | None) -> Manifest:
    """The log, and of the others' KV, by this node's names, what is most of it."""
    kept = [kv_of(other, logged.token_ids, logged.fingerprint) for other in others]
    best = max(kept, key=lambda fields: fields.get("num_kv", 0))
    return replace(logged, **best)


def _above(head: Manifest | None, manifest: Manifest) -> Manifest:
    least = head.generation if head else 0
    return replace(manifest, generation=max(manifest.generation, least))
