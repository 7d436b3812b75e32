"""What /metrics says: requests by class and outcome, TTFT, TPOT, queue time, queues, pools, KV.

Ends, queues and pools are read from the store at each scrape, and what sla_metrics.py tells; the
other counters and the histograms are of what passed this process.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.metrics_core import CounterMetricFamily
from prometheus_client.registry import Collector

from ingest.kv_metrics import KvMetrics
from ingest.program_metrics import ProgramMetrics
from ingest.pulse import Pulse
from ingest.sla_metrics import SlaMetrics
from workers.sla import SlaTable
from workers.wire import EndEvent

disable_created_metrics()  # type: ignore[no-untyped-call]

CLASSES: Final = SlaTable()
SECONDS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
TOKEN_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.6, 1.2)
SLA: Final = ["sla"]
POOL: Final = ["pool", "worker"]


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
        self.sla = SlaMetrics(table)
        r.register(self.sla)
        self.tokens = Counter("lockstep_output_tokens", "tokens of answers", SLA, registry=r)
        self.disconnects = Counter(
            "lockstep_disconnects", "requests cancelled because their client left", registry=r
        )
        self.ttft = Histogram(
            "lockstep_ttft_seconds", "time to first token", SLA, buckets=SECONDS, registry=r
        )
        self.tpot = Histogram(
            "lockstep_tpot_seconds", "time per output token", SLA, buckets=TOKEN_SECONDS, registry=r
        )
        self.queue = Histogram(
            "lockstep_queue_seconds", "arrival to first step", SLA, buckets=SECONDS, registry=r
        )
        self.open_streams = Gauge("lockstep_open_streams", "clients that wait", registry=r)
        self.waiting = Gauge("lockstep_queue_length", "requests that wait", ["queue"], registry=r)
        self.pool_ready = Gauge("lockstep_pool_ready", "1 when ready", POOL, registry=r)
        self.pool_failed = Gauge("lockstep_pool_failed", "1 when its GPU failed", POOL, registry=r)
        self.pool_running = Gauge("lockstep_pool_running", "sequences that run", POOL, registry=r)
        self.pool_capacity = Gauge("lockstep_pool_capacity", "sequences at most", POOL, registry=r)
        self.pool_free = Gauge("lockstep_pool_free_blocks", "free KV blocks", POOL, registry=r)
        self.pool_total = Gauge("lockstep_pool_blocks", "KV blocks", POOL, registry=r)
        self.pool_speed = Gauge("lockstep_pool_tokens_per_second", "output", POOL, registry=r)

    def saw_end(self, sla: str, end: EndEvent) -> None:
        """The times of one answer, and its tokens."""
        if end.usage is not None:
            self.tokens.labels(sla).inc(end.usage.output_tokens)
        times = ((self.ttft, end.ttft_ms), (self.tpot, end.tpot_ms), (self.queue, end.queue_ms))
        for histogram, value_ms in times:
            if value_ms is not None:
                histogram.labels(sla).observe(value_ms / 1000)

    def page(self, pulse: Pulse | None, num_streams: int, disk: Mapping[str, float]) -> bytes:
        """The text that Prometheus reads. disk: health.disk_stats."""
        self.kv.loads, self.kv.disk = pulse.loads if pulse else (), disk
        self.open_streams.set(num_streams)
        self.ends.counts = pulse.ends if pulse else {}
        self.sla.pulse = pulse
        for queue, length in (pulse.streams | pulse.queues if pulse else {}).items():
            self.waiting.labels(queue).set(length)
        pools = (self.pool_ready, self.pool_failed, self.pool_running, self.pool_capacity)
        for gauge in (*pools, self.pool_free, self.pool_total, self.pool_speed):
            gauge.clear()  # a pool that is gone says nothing
        for load in pulse.loads if pulse else ():
            labels = (load.pool, load.worker)
            self.pool_ready.labels(*labels).set(load.state == "ready")
            self.pool_failed.labels(*labels).set(load.state == "failed")
            self.pool_running.labels(*labels).set(load.running)
            self.pool_capacity.labels(*labels).set(load.capacity)
            self.pool_free.labels(*labels).set(load.free_blocks)
            self.pool_total.labels(*labels).set(load.total_blocks)
            self.pool_speed.labels(*labels).set(load.tokens_per_s)
        return generate_latest(self.registry)
