"""What /metrics says of the fleet's nodes: which take part, how fast each is.

A node that is alone on its Redis has none of it.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ingest.fleet import SeenNode
from ingest.metrics.pools import NODE
from workers.wire import KEEP_S

INFO: Final = [NODE, "host", "version", "model", "weights", "arithmetic"]
GAUGES: Final = {
    "node_up": "1 while it says that it lives",
    "node_refused": "1 while it takes no requests: its weights, arithmetic, clock or name",
    "node_silent_seconds": "since it was heard last; of one that was stopped 30 days",
    "node_clock_offset_seconds": "by how much its clock is ahead of the store's",
    "node_requests_per_second": "of 256 and 256 tokens, as its pools predict",
}


class NodeMetrics(Collector):
    """nodes: as they were when /metrics was asked for."""

    def __init__(self) -> None:
        self.nodes: Sequence[SeenNode] = ()

    def collect(self) -> Iterator[Metric]:
        named = [node for node in self.nodes if node.name]
        if not named:
            return
        for name, says in GAUGES.items():
            family = GaugeMetricFamily(f"lockstep_{name}", says, labels=[NODE])
            for node in named:
                family.add_metric([node.name], gauges_of(node)[name])
            yield family
        info = GaugeMetricFamily("lockstep_node_info", "1; what it is", labels=INFO)
        for node in named:
            told = node.report
            which = [node.name, told.host, told.version, told.model, told.weights, told.arithmetic]
            info.add_metric(which, 1)
        yield info


def gauges_of(node: SeenNode) -> dict[str, float]:
    """By the names of GAUGES."""
    return {
        "node_up": float(node.state not in ("silent", "gone", "stopped")),
        "node_refused": float(bool(node.report.refused)),
        "node_silent_seconds": min(node.silent_s, KEEP_S),
        "node_clock_offset_seconds": node.report.clock_ms / 1000,
        "node_requests_per_second": node.report.speed,
    }
