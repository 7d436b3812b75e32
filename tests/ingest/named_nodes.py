"""Nodes of a fleet as others see them: what their routers and pools say, in a real store."""

from workers.fleet.presence import NodeReport, Presence
from workers.wire import Keys, PoolLoad
from workers.worker_store import WorkerStore

IDENTITY = "tiny:0123456789abcdef:89abcdef:1"


class NamedNode:
    """One node, without any process."""

    def __init__(self, url: str, name: str, *, prefix: str = "lockstep", **options) -> None:
        self.name = name
        self.store = WorkerStore(url, Keys(prefix, node=name), **options)

    def say(self, *, identity: str = IDENTITY, speed: float = 1.0, **told) -> Presence:
        """That it lives, twice, as its router does: the second time it tells what it heard."""
        report = NodeReport(node=self.name, instance=f"home-{self.name}", model="tiny", **told)
        presence = Presence(self.store, identity, report)
        for _ in range(2):
            presence.say(speed)
        return presence

    def report(self, processor: str = "cpu", **told) -> PoolLoad:
        """A pool of it, which does not fall silent however long a test takes."""
        pool = f"{processor}@{self.name}"
        worker = f"home{self.name}-{pool}-0"
        said = {"state": "ready", "model": "tiny", "capacity": 4, "total_blocks": 64, **told}
        load = PoolLoad(pool=pool, worker=worker, **said)
        self.store.report(load)
        self.store.redis.persist(self.store.keys.pool(pool, worker))
        return load

    def fall_silent(self, seconds: float) -> None:
        """As if it had been heard last so long ago."""
        keys, redis = self.store.keys, self.store.redis
        heard_s = redis.time()[0] - seconds
        redis.hset(keys.node_report(self.name), "heard_s", heard_s)
        redis.zadd(keys.nodes, {self.name: heard_s})
