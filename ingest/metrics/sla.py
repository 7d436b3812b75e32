"""What /metrics says of promises: kept and broken by class, refusals, plans, errors of predictions.

All of it is read from the store at each scrape: whichever door, router or pool counted it.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ingest.health.pulse import Pulse
from ingest.metrics.pools import NODE, POOL, labels_of
from workers.sla import SlaTable
from workers.wire import PoolLoad

KEPT: Final = "kept"
TOKENS: Final = "tokens"  # counted beside the promises: output of those that were kept


class SlaMetrics(Collector):
    """pulse: the last look; None: the store is away, and nothing is said. loads: of all pools."""

    def __init__(self, table: SlaTable) -> None:
        self.table = table
        self.pulse: Pulse | None = None
        self.loads: Sequence[PoolLoad] = ()

    def collect(self) -> Iterator[Metric]:
        if self.pulse is None:
            return
        yield from self._promises(self.pulse.promises)
        yield counters(
            "lockstep_requests_refused",
            "requests that were not taken, by either door",
            "code",
            self.pulse.refusals,
        )
        yield self._placements(self.pulse.placements)
        yield self._predictions()

    def _placements(self, counts: Mapping[tuple[str, str], int]) -> Metric:
        family = CounterMetricFamily(
            "lockstep_placements",
            "requests by what was planned, the pools of prefill and decode, and the kind of reason",
            labels=["plan", "why"],
        )
        for (plan, why), count in counts.items():
            family.add_metric([plan, why or "unplanned"], count)
        return family

    def _promises(self, counts: Mapping[tuple[str, str], int]) -> Iterator[Metric]:
        ends = CounterMetricFamily(
            "lockstep_promises",
            "requests whose promise was kept, or what was not",
            labels=["sla", "outcome"],
        )
        tokens = CounterMetricFamily(
            "lockstep_goodput_tokens", "tokens of answers that kept the promise", labels=["sla"]
        )
        for (sla, outcome), count in counts.items():
            if outcome == TOKENS:
                tokens.add_metric([sla], count)
            else:
                ends.add_metric([sla, outcome], count)
        yield ends
        yield tokens
        share = GaugeMetricFamily(
            "lockstep_attainment", "share of requests whose promise was kept", labels=["sla"]
        )
        target = GaugeMetricFamily(
            "lockstep_attainment_target", "the share that is promised", labels=["sla"]
        )
        for promised in self.table:
            attained = attainment(promised.name, counts)
            if attained is not None:
                share.add_metric([promised.name], attained)
            target.add_metric([promised.name], promised.attainment)
        yield share
        yield target

    def _predictions(self) -> Metric:
        error = GaugeMetricFamily(
            "lockstep_cost_error",
            "mean relative error of predicted step times, lately",
            labels=(*POOL, NODE),
        )
        for load in self.loads:
            if load.cost is not None:
                error.add_metric(labels_of(load), load.cost.error)
        return error


def attainment(sla: str, counts: Mapping[tuple[str, str], int]) -> float | None:
    """The share of a class's promises that were kept; None: there were none."""
    mine = {what: n for (name, what), n in counts.items() if name == sla and what != TOKENS}
    total = sum(mine.values())
    return mine.get(KEPT, 0) / total if total else None


def counters(name: str, says: str, label: str, counts: Mapping[str, int]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, says, labels=[label])
    for value, count in counts.items():
        family.add_metric([value], count)
    return family
