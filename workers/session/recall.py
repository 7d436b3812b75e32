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
from workers.store import Store
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

        Raises RedisError.
        """
        found, trouble = self._stored(tenant, session_id)
        stored, logged = without_void(found, noted), None
        if not is_current(stored, noted):
            logged = logged_of(self.store, tenant, session_id)
        manifest = chosen(head, stored, logged, noted)
        found_in = "recalled_store" if logged is None else "recalled_log"
        self._count("recall_failed" if manifest is None else found_in)
        return Recalled(manifest, trouble)

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

    def _count(self, name: str) -> None:
        with self._guard:
            self._counts[name] += 1


def logged_of(store: Store, tenant: str, session_id: str) -> Manifest | None:
    """What the token log in Redis says; None: there is none, or none that is sound."""
    data = store.redis.get(store.keys.session_log(full_id(tenant, session_id)))
    if not isinstance(data, bytes):
        return None
    try:
        return unpacked(data, tenant, session_id)
    except CorruptFile as error:
        log.warning("a session's log in Redis cannot be used", error=str(error))
        return None


def chosen(
    own: Manifest | None,
    stored: Manifest | None,
    logged: Manifest | None,
    noted: Mapping[str, Any],
) -> Manifest | None:
    """The session as it was committed last, of what our files, the object store and Redis have.

    Its generation is not below own's, so that what follows it can be committed here.
    """
    if is_current(stored, noted):
        found = stored
    elif logged is not None and is_current(logged, noted):
        found = with_kv_of(logged, stored, own)
    else:
        return None
    least = own.generation if own else 0
    return found and replace(found, generation=max(found.generation, least))


def without_void(manifest: Manifest | None, noted: Mapping[str, Any]) -> Manifest | None:
    """The same, unless the session was deleted since."""
    return None if manifest is None or is_void(manifest, noted) else manifest


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
