"""The store's connections: Redis clients that never re-send a write, and scripts by their names.

A write is never re-sent by the client library: a lost reply would double it. What is retried is a
whole script, by us, because each one tells a repeat from a first time.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Self

from redis import Redis
from redis.exceptions import ConnectionError as StoreAway

from workers.kill_point import reach
from workers.master.client import StoreClients
from workers.script import Value, script_text
from workers.settings import Settings
from workers.sla import SlaTable
from workers.wire import KEEP_S, Keys

CLASSES: Final = SlaTable()
REPLICATED_MS: Final = 2000  # what a replica may take to have a request that is accepted


class NotReplicated(StoreAway):
    """It is written, but so far on too few servers to be called accepted: ask again."""


class StoreClient:
    """One node's connections to Redis. Safe to share between threads."""

    def __init__(
        self,
        url: str,
        keys: Keys,
        *,
        timeout_s: float = 5.0,
        result_ttl_s: int = 4 * 86400,
        lease_s: float = 15.0,
        max_attempts: int = 4,
        requests_per_min: int = 0,
        tokens_per_min: int = 0,
        table: SlaTable = CLASSES,
        traces: bool = False,
        replicas: int = 0,
    ) -> None:
        """requests_per_min, tokens_per_min: what each tenant may ask for; 0: any number.

        traces: a request that brings no traceparent gets one
        replicas: so many must have a request before it is accepted
        """
        # rq reads its prefix when it is first imported: set before anybody does
        os.environ["RQ_KEY_PREFIX"] = keys.rq_prefix
        self.url = url
        self.clients = StoreClients(url, keys.prefix)
        self.keys = keys
        self.timeout_s = timeout_s
        self.result_ttl_s = result_ttl_s
        self.lease_s = lease_s
        self.max_attempts = max_attempts
        self.rates = (requests_per_min, tokens_per_min)
        self.table = table
        self.traces = traces
        self.replicas = replicas
        self.redis = self.blocking(0.0)
        self._scripts: dict[str, Any] = {}

    @classmethod
    def of(cls, settings: Settings, *, timeout_s: float = 5.0) -> Self:
        """The store that the settings name."""
        return cls(
            settings.url,
            Keys(settings.key_prefix, settings.classes.names, settings.node),
            timeout_s=timeout_s,
            result_ttl_s=settings.result_ttl_s,
            lease_s=settings.lease_s,
            max_attempts=settings.max_attempts,
            requests_per_min=settings.tenant_requests_per_min,
            tokens_per_min=settings.tenant_tokens_per_min,
            table=settings.classes,
            traces=bool(settings.traces),
            replicas=settings.redis_replicas,
        )

    def blocking(self, block_s: float) -> Redis:
        """A client for reads that block up to block_s: no retries, a timeout beyond the block."""
        return self.clients.client(block_s + self.timeout_s, connect_s=self.timeout_s)

    @contextmanager
    def replicated(self) -> Iterator[Redis]:
        """A client; what is written by it in the block is also on the replicas at its end.

        Raises NotReplicated.
        """
        if self.replicas == 0:
            yield self.redis
            return
        of_its_own: Redis = self.redis.client()  # type: ignore[no-untyped-call]
        with of_its_own as alone:  # WAIT is for what its own connection wrote
            yield alone
            have_it = int(alone.wait(self.replicas, REPLICATED_MS))
        if have_it < self.replicas:
            raise NotReplicated(f"{have_it} of {self.replicas} replicas have it")

    def run(
        self, name: str, keys: Iterable[str], *arguments: Value, client: Redis | None = None
    ) -> Any:
        """Call the script workers/lua/NAME.lua; the common arguments are put before its own.

        keys: at least one, so that a server that does not hold it refuses
        """
        named = list(keys)
        assert named, f"{name}: a server of a Cluster would run it whatever it holds"
        script = self._scripts.get(name)
        if script is None:
            script = self._scripts[name] = self.redis.register_script(script_text(name))
        common = (self.keys.prefix, self.keys.rq_prefix, KEEP_S, self.result_ttl_s)
        reach(f"before {name}")
        said = script(keys=named, args=[*common, *arguments], client=client)
        reach(f"after {name}")
        return said
