"""What the store knows of a session, and that it is told when one is made or deleted on purpose."""

from contextlib import suppress
from typing import Any

from workers.settings import settings
from workers.wire import full_id


def known_of(tenant: str, session_id: str) -> dict[str, Any]:
    """What the store knows. One that does not answer runs nothing new; what ran cannot commit."""
    from redis.exceptions import ConnectionError, TimeoutError

    from workers.store import Store

    try:
        return Store.of(settings()).session(full_id(tenant, session_id))
    except (ConnectionError, TimeoutError):
        return {}


def forget(tenant: str, session_id: str) -> None:
    """The store no longer misses the files that this session had. It may be away."""
    from redis.exceptions import RedisError

    from workers.store import Store

    with suppress(RedisError):
        Store.of(settings()).session_forget(full_id(tenant, session_id))
