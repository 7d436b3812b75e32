"""What /metrics says: requests by class and outcome, queues, pools, KV, promises, this door.

Nearly all of it is read from the store at each scrape, whichever way requests came: pools.py
(steps, times, memory), kv.py, sla.py, nodes.py. So each node of a fleet tells of all of it, with
the label `node`. What passed this process alone: requests accepted, clients that wait or left.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from ingest.fleet import SeenNode, loads_of, queues_of
from ingest.health.pulse import Pulse
from ingest.metrics.kv import KvMetrics
from ingest.metrics.nodes import NodeMetrics
from ingest.metrics.pools import NODE, PoolMetrics, tail
from ingest.metrics.programs import ProgramMetrics
from ingest.metrics.sla import SlaMetrics
from workers.fleet.names import node_of, processor_of
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


class Waiting(Collector):
    """Requests that wait: of a class for a router, in a pool's queue for the pool."""

    def __init__(self) -> None:
        self.streams: Mapping[str, int] = {}
        self.queues: Mapping[str, int] = {}

    def collect(self) -> Iterator[GaugeMetricFamily]:
        says = "requests that wait: of a class for a router, in a pool's queue for the pool"
        labels = ("queue", NODE)
        family = GaugeMetricFamily("lockstep_num_requests_waiting", says, labels=labels)
        for sla, length in self.streams.items():
            family.add_metric((sla,), length)
        for pool, length in self.queues.items():
            family.add_metric((processor_of(pool), *tail(node_of(pool))), length)
        yield family


class Metrics:
    """A registry of its own, so that several can live in one process."""

    def __init__(self, table: SlaTable = CLASSES, node: str = "") -> None:
        """node: whose programs and disk these are"""
        r = self.registry = CollectorRegistry()
        self.accepted = Counter(
            "lockstep_requests_accepted", "requests accepted", ["sla", "door"], registry=r
        )
        self.ends = Ends()
        r.register(self.ends)
        self.kv = KvMetrics(node)
        r.register(self.kv)
        self.programs = ProgramMetrics(node)
        r.register(self.programs)
        self.pools = PoolMetrics(node)
        r.register(self.pools)
        self.nodes = NodeMetrics()
        r.register(self.nodes)
        self.waiting = Waiting()
        r.register(self.waiting)
        self.sla = SlaMetrics(table)
        r.register(self.sla)
        self.disconnects = Counter(
            "lockstep_disconnects", "requests cancelled because their client left", registry=r
        )
        self.open_streams = Gauge("lockstep_open_streams", "clients that wait", registry=r)

    def page(
        self,
        pulse: Pulse | None,
        num_streams: int,
        disk: Mapping[str, float],
        nodes: Sequence[SeenNode] = (),
        *,
        whole: bool = True,
    ) -> bytes:
        """The text that Prometheus reads.

        disk   routes.py's disk_stats
        nodes  of the fleet; whole: with the pools of all of them, else of this node alone
        """
        every = nodes if whole else ()
        loads = loads_of(every) or (pulse.loads if pulse else [])
        self.kv.loads = self.pools.loads = self.sla.loads = loads
        self.kv.disk = self.pools.disk = disk
        self.nodes.nodes = nodes
        self.open_streams.set(num_streams)
        self.ends.counts = pulse.ends if pulse else {}
        self.sla.pulse = pulse
        self.waiting.streams = pulse.streams if pulse else {}
        self.waiting.queues = queues_of(every) or (pulse.queues if pulse else {})
        return generate_latest(self.registry)
