"""What /metrics says of the node's programs: whether they run, how often they were restarted."""

from collections.abc import Iterator, Sequence
from typing import Final

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ingest.health.programs import Program
from ingest.metrics.pools import NODE, tail

PROGRAM: Final = ["program", NODE]


class ProgramMetrics(Collector):
    """programs: as they were when /metrics was asked for.   node: whose they are"""

    def __init__(self, node: str = "") -> None:
        self.node = node
        self.programs: Sequence[Program] = ()

    def collect(self) -> Iterator[Metric]:
        up = GaugeMetricFamily("lockstep_program_up", "1 while it runs", labels=PROGRAM)
        restarts = CounterMetricFamily(
            "lockstep_program_restarts", "starts after its first", labels=PROGRAM
        )
        code = GaugeMetricFamily(
            "lockstep_program_last_exit_code", "negative: a signal's number", labels=PROGRAM
        )
        at = GaugeMetricFamily(
            "lockstep_program_next_start_timestamp_seconds", "while it waits", labels=PROGRAM
        )
        for program in self.programs:
            which = [program.name, *tail(self.node)]
            up.add_metric(which, program.state == "running")
            restarts.add_metric(which, program.restarts)
            if program.last_exit is not None:
                code.add_metric(which, program.last_exit.code)
            if program.next_start_ms is not None:
                at.add_metric(which, program.next_start_ms / 1000)
        yield from (up, restarts, code, at)
