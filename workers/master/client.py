"""Redis clients of the store, whichever way LOCKSTEP_REDIS_URL leads to it.

A client here sends each command once: what is to be tried again is tried by who called. RQ's own
commands have them, too:

    rq info --connection-class workers.master.client.StoreRedis --url 'redis+cluster://...'
"""

from typing import Any, Final, Self

import redis.asyncio
from redis import ConnectionPool, Redis, UnixDomainSocketConnection
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.maint_notifications import MaintNotificationsConfig
from redis.retry import Retry

from workers.master.address import StoreUrl, parse
from workers.master.connection import (
    AsyncMasterConnection,
    AsyncMasterSSLConnection,
    MasterConnection,
    MasterSSLConnection,
)
from workers.master.finding import Master, master_of

CONNECT_S: Final = 5.0


class StoreClients:
    """Makes clients that share what is known of the master. Safe to share between threads.

    prefix  of all keys: on a Cluster it says which slot they are in
    """

    def __init__(self, url: str, prefix: str) -> None:
        """Raises BadUrl."""
        self.url: StoreUrl = parse(url)
        self.master: Master | None = None
        if self.url.kind != "unix":
            self.master = master_of(self.url, prefix)

    def client(self, timeout_s: float, *, connect_s: float = CONNECT_S) -> Redis:
        """timeout_s: for each reply, connect_s: for each connection."""
        times = {"socket_timeout": timeout_s, "socket_connect_timeout": connect_s}
        return Redis(connection_pool=self.pool(**times))

    def pool(self, **options: Any) -> ConnectionPool:
        """Connections for clients. options: of each; the URL's own go before them."""
        kinds = (UnixDomainSocketConnection, MasterConnection, MasterSSLConnection)
        once = {"retry": Retry(NoBackoff(), 0), "protocol": 3, "legacy_responses": True}
        return ConnectionPool(**self._options(once | options, kinds))

    def async_pool(self, **options: Any) -> redis.asyncio.ConnectionPool:
        """The same for asyncio."""
        unix = redis.asyncio.UnixDomainSocketConnection
        kinds = (unix, AsyncMasterConnection, AsyncMasterSSLConnection)
        once = {"retry": AsyncRetry(NoBackoff(), 0), "socket_connect_timeout": CONNECT_S}
        return redis.asyncio.ConnectionPool(**self._options(once | options, kinds))

    def leads_elsewhere(self, connection: Any) -> bool:
        """Whether a connection of an async_pool is one to an earlier master."""
        return isinstance(connection, AsyncMasterConnection) and connection.is_old

    def _options(self, options: dict[str, Any], kinds: tuple[type, type, type]) -> dict[str, Any]:
        """Of a connection. kinds: its class by a Unix socket, plain, and by TLS."""
        common = options | dict(self.url.options)
        if self.master is None:
            return {**common, "connection_class": kinds[0]}
        # what a server tells of its own maintenance is for clients that know what to do about it
        quiet = MaintNotificationsConfig(enabled=False)
        way = {"master": self.master, "maint_notifications_config": quiet}
        return {**common, **way, "connection_class": kinds[2 if self.url.is_tls else 1]}


class StoreRedis(Redis):
    """What RQ's commands take as --connection-class; which keys it means is in RQ_KEY_PREFIX."""

    @classmethod
    def from_url(cls, url: str, **options: Any) -> Self:
        from rq.defaults import RQ_KEY_PREFIX

        return cls(connection_pool=StoreClients(url, RQ_KEY_PREFIX).pool(**options))
