"""What /metrics says: requests by class and outcome, queues, pools, KV, promises, this door.

Nearly all of it is read from the store at each scrape, whichever way requests came: pools.py
(steps, times, memory), kv.py, sla.py. What passed this process alone: requests
accepted, clients that wait or left.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.metrics_core import CounterMetricFamily
from prometheus_client.registry import Collector

from ingest.health.pulse import Pulse
from ingest.metrics.kv import KvMetrics
from ingest.metrics.pools import PoolMetrics
from ingest.metrics.programs import ProgramMetrics
from ingest.metrics.sla import SlaMetrics
from workers.sla import SlaTable

disable_created_metrics()  # type: ignore[no-untyped-call]

CLASSES: Final = SlaTable()


class Ends(Collector):
    """Requests by class and outcome, whichever way they came: the store counts them."""

    def __init__(self) -> None:
        self.counts: Mapping[tuple[str, str], int] = {}

    def collect(self) -> Iterator[CounterMetricFamily]:
        family = CounterMetricFamily(
            "lockstep_requests_ended", "requests that ended", labels=["sla", "outcome"]
        )
        for (sla, outcome), count in self.counts.items():
            family.add_metric([sla, outcome], count)
        yield family


class Metrics:
    """A registry of its own, so that several can live in one process."""

    def __init__(self, table: SlaTable = CLASSES) -> None:
        r = self.registry = CollectorRegistry()
        self.accepted = Counter(
            "lockstep_requests_accepted", "requests accepted", ["sla", "door"], registry=r
        )
        self.ends = Ends()
        r.register(self.ends)
        self.kv = KvMetrics()
        r.register(self.kv)
        self.programs = ProgramMetrics()
        r.register(self.programs)
        self.pools = PoolMetrics()
        r.register(self.pools)
        self.sla = SlaMetrics(table)
        r.register(self.sla)
        self.disconnects = Counter(
            "lockstep_disconnects", "requests cancelled because their client left", registry=r
        )
        self.open_streams = Gauge("lockstep_open_streams", "clients that wait", registry=r)
        self.waiting = Gauge(
            "lockstep_num_requests_waiting",
            "requests that wait: of a class for a router, in a pool's queue for the pool",
            ["queue"],
            registry=r,
        )

    def page(self, pulse: Pulse | None, num_streams: int, disk: Mapping[str, float]) -> bytes:
        """The text that Prometheus reads. disk: health/routes.py's disk_stats."""
        self.kv.loads = self.pools.loads = pulse.loads if pulse else ()
        self.kv.disk = self.pools.disk = disk
        self.open_streams.set(num_streams)
        self.ends.counts = pulse.ends if pulse else {}
        self.sla.pulse = pulse
        for queue, length in (pulse.streams | pulse.queues if pulse else {}).items():
            self.waiting.labels(queue).set(length)
        return generate_latest(self.registry)
