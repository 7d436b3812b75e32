"""The classes as `lockstep status` shows them: what waits, what is promised, what was kept."""

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from ingest.pulse import Pulse
from ingest.sla_metrics import TOKENS, attainment
from router.placement import shown_ms
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


def classes_table(rows: list[Row]) -> Table:
    """For a person."""
    table = Table("class", "waiting", "wait now", "promised", "kept", "not kept", box=None)
    for row in rows:
        wait = "" if row["wait_ms"] is None else shown_ms(row["wait_ms"])
        table.add_row(row["sla"], waiting(row), wait, promise(row), kept(row), broken(row))
    return table


def waiting(row: Row) -> str:
    return str(row["waiting"]) if row["most"] is None else f"{row['waiting']} of {row['most']}"


def promise(row: Row) -> str:
    """ "first token in 2.0 s, 100 ms a token, end in 60 min" """
    parts = []
    if row["ttft_ms"]:
        parts.append(f"first token in {shown_ms(row['ttft_ms'])}")
    if row["tpot_ms"]:
        parts.append(f"{shown_ms(row['tpot_ms'])} a token")
    if row["deadline_ms"]:
        parts.append(f"end in {shown_ms(row['deadline_ms'])}")
    return ", ".join(parts) or "nothing"


def kept(row: Row) -> str:
    """The share so far, and in brackets the one that is promised."""
    target = f"({100 * row['target']:.4g} %)"
    return (
        f"– {target}" if row["attainment"] is None else f"{100 * row['attainment']:.4g} % {target}"
    )


def broken(row: Row) -> str:
    """How many, and by what."""
    counts = {what: n for what, n in row["outcomes"].items() if what != "kept"}
    return ", ".join(f"{what} {n}" for what, n in sorted(counts.items()))
