"""What the store knows of a session, and that it is told when one is made or deleted on purpose."""

import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ingest.command.failure import Failure
from workers.settings import settings
from workers.wire import full_id

if TYPE_CHECKING:
    from kv_tier.manifest import Manifest
    from kv_tier.tier import KvTier


def known_of(tenant: str, session_id: str) -> dict[str, Any]:
    """What the store knows. One that does not answer runs nothing new; what ran cannot commit."""
    from redis.exceptions import ConnectionError, TimeoutError

    from workers.store import Store

    try:
        return Store.of(settings()).session(full_id(tenant, session_id))
    except (ConnectionError, TimeoutError):
        return {}


def forget(tier: "KvTier", tenant: str, session_id: str) -> None:
    """Nobody misses the files that this session had: not the store, which may be away, nor the
    object store behind them, if there is one."""
    from redis.exceptions import RedisError

    from workers.session.files import forget_stored
    from workers.store import Store

    with suppress(RedisError):
        Store.of(settings()).session_forget(full_id(tenant, session_id))
    reason = forget_stored(settings(), tier, tenant, session_id)
    if reason:
        print(f"it stays in the object store until that is swept: {reason}", file=sys.stderr)


def forget_old(tier: "KvTier", tenant: str, session_id: str) -> None:
    """Files that nobody used for their time go; a commit of another node, which is newer, stays."""
    from redis.exceptions import RedisError

    from workers.session.files import forget_stored
    from workers.store import Store

    head = tier.sessions.head(tenant, session_id)
    fence = head.fence if head else None
    with suppress(RedisError):
        if Store.of(settings()).session_forget(full_id(tenant, session_id), fence=fence):
            forget_stored(settings(), tier, tenant, session_id)


def new_fence(tenant: str, session_id: str) -> int:
    """For a session that is made here by hand: higher than any that its name had before.

    Raises Failure, when the fleet has it already, or cannot be asked.
    """
    from redis.exceptions import RedisError

    from workers.store import Store

    node = settings().node
    try:
        known = Store.of(settings()).session(full_id(tenant, session_id))
    except RedisError as error:
        if node:
            raise Failure(f"the fleet cannot be asked for {session_id!r}: {error}") from None
        return int(time.time())  # far above any count of claims
    if node and "committed" in known:
        where = known.get("pool", "another node")
        raise Failure(f"there is a session {session_id!r} already ({where}): choose another id")
    return int(known.get("fence", 0)) + 1


def announce(manifest: "Manifest") -> None:
    """A session was made here by hand: the other nodes of a fleet know of it, and its log."""
    from redis.exceptions import RedisError

    from workers.session.token_log import packed
    from workers.store import Store

    with suppress(RedisError):
        Store.of(settings()).session_note(
            full_id(manifest.tenant, manifest.session_id),
            fence=manifest.fence,
            log=packed(manifest) if settings().node else None,
            committed=manifest.fence,
            generation=manifest.generation,
            tokens=len(manifest.token_ids),
            used_ms=manifest.used_ms,
            unsaved="",
            writing="",
        )
