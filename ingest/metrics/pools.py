"""What /metrics says of pools: places, memory by tier, steps, and histograms of times by class.

All of it is what pools said last (PoolLoad): a pool that is gone says nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from prometheus_client.metrics_core import GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from workers.fleet.names import node_of, processor_of
from workers.histograms import OF_CLASS, OF_POOL, Shape, split_told
from workers.wire import PoolLoad

POOL: Final = ("pool", "worker")
NODE: Final = "node"  # the last label of all; a node that is alone goes without
GAUGES: Final[Mapping[str, str]] = {
    "pool_ready": "1 when ready",
    "pool_failed": "1 when its GPU failed",
    "num_requests_running": "requests that it has claimed",
    "pool_capacity": "requests that may run at once",
    "pool_free_blocks": "free KV blocks",
    "pool_blocks": "KV blocks",
    "pool_tokens_per_second": "output of the last ten seconds",
    "pool_decoding": "sequences that get a token in each step",
    "pool_prefill_tokens": "prompt tokens that are still to be computed",
    "pool_step_seconds": "mean duration of a step lately",
}
TIER_OF: Final = {"gpu": "vram", "cpu": "ram"}


class PoolMetrics(Collector):
    """Set loads and disk, then let it be collected. node, disk: as kv.KvMetrics."""

    def __init__(self, node: str = "") -> None:
        self.node = node
        self.loads: Sequence[PoolLoad] = ()
        self.disk: Mapping[str, float] = {}

    def collect(self) -> Iterator[Metric]:
        for name, says in GAUGES.items():
            family = GaugeMetricFamily(f"lockstep_{name}", says, labels=(*POOL, NODE))
            for load in self.loads:
                family.add_metric(labels_of(load), gauges_of(load)[name])
            yield family
        yield self._usage()
        for quantity, shape in OF_CLASS.items():
            yield self._histograms(quantity, shape, (*POOL, "sla", NODE))
        for quantity, shape in OF_POOL.items():
            yield self._histograms(quantity, shape, (*POOL, NODE))

    def _usage(self) -> GaugeMetricFamily:
        says = "share of the memory of KV that is in use, by tier: vram, ram, disk"
        family = GaugeMetricFamily("lockstep_kv_usage_ratio", says, labels=(*POOL, "tier", NODE))
        for load in self.loads:
            if load.total_blocks:
                used = 1 - load.free_blocks / load.total_blocks
                tier = TIER_OF.get(processor_of(load.pool), "ram")
                family.add_metric(labels_of(load, tier), used)
        if quota := self.disk.get("quota_bytes"):
            used = self.disk.get("bytes", 0.0) / quota
            family.add_metric(("", "", "disk", *tail(self.node)), used)
        return family

    def _histograms(
        self, quantity: str, shape: Shape, labels: Sequence[str]
    ) -> HistogramMetricFamily:
        family = HistogramMetricFamily(f"lockstep_{shape.metric}", shape.help, labels=labels)
        for load in self.loads:
            for name, told in load.histograms.items():
                found, sla = split_told(name)
                if found == quantity and len(told) == len(shape.bounds) + 2:
                    which = labels_of(load, *([sla] if sla else []))
                    family.add_metric(which, buckets(shape, told), told[-1])
        return family


def labels_of(load: PoolLoad, *more: str) -> tuple[str, ...]:
    """Values of POOL, of more labels, and of NODE."""
    return processor_of(load.pool), load.worker, *more, *tail(node_of(load.pool))


def tail(node: str) -> tuple[str, ...]:
    """The value of NODE; none of a node that is alone."""
    return (node,) if node else ()


def gauges_of(load: PoolLoad) -> dict[str, float]:
    """By the names of GAUGES."""
    return {
        "pool_ready": float(load.state == "ready"),
        "pool_failed": float(load.state == "failed"),
        "num_requests_running": load.running,
        "pool_capacity": load.capacity,
        "pool_free_blocks": load.free_blocks,
        "pool_blocks": load.total_blocks,
        "pool_tokens_per_second": load.tokens_per_s,
        "pool_decoding": load.decoding,
        "pool_prefill_tokens": load.prefill_tokens,
        "pool_step_seconds": load.step_ms / 1000,
    }


def buckets(shape: Shape, told: Sequence[float]) -> list[tuple[str, float]]:
    """Upper end and observations up to it, as Prometheus counts them: each with all below."""
    ends = [*(f"{bound:g}" for bound in shape.bounds), "+Inf"]
    total, result = 0.0, []
    for end, count in zip(ends, told[:-1], strict=True):
        total += count
        result.append((end, total))
    return result
