"""The classes, a row each: what waits, what is promised, what was kept; for every way to look."""

from collections.abc import Mapping
from typing import Any

from ingest.health.pulse import Pulse
from ingest.metrics.sla import TOKENS, attainment
from workers.sla import SlaClass, SlaTable
from workers.wire import Pressure

Row = dict[str, Any]


def class_rows(pulse: Pulse, table: SlaTable, pressures: Mapping[str, Pressure]) -> list[Row]:
    """One row a class, most urgent first.

    waiting       for a router; most: as many may wait at present; wait_ms: predicted for a new one
    attainment    the share of promises kept so far; None: none was due yet
    outcomes      how many promises were kept, and what was not
    """
    return [row_of(sla, pulse, pressures.get(sla.name)) for sla in table]


def row_of(sla: SlaClass, pulse: Pulse, pressure: Pressure | None) -> Row:
    outcomes = {w: n for (name, w), n in pulse.promises.items() if name == sla.name and w != TOKENS}
    attained = attainment(sla.name, pulse.promises)
    return {
        "sla": sla.name,
        "waiting": pulse.streams[sla.name],
        "most": pressure.most if pressure else None,
        "wait_ms": pressure.wait_ms if pressure else None,
        "ttft_ms": sla.ttft_ms,
        "tpot_ms": sla.tpot_ms,
        "deadline_ms": sla.deadline_ms,
        "target": sla.attainment,
        "attainment": None if attained is None else round(attained, 4),
        "outcomes": outcomes,
    }


def by_plan(counts: Mapping[tuple[str, str], int]) -> dict[str, dict[str, int]]:
    """How many requests were placed by each plan, and why."""
    plans: dict[str, dict[str, int]] = {}
    for (plan, why), count in counts.items():
        plans.setdefault(plan, {})[why or "unplanned"] = count
    return plans
