"""Rows of a load: for each class, and for all of them together."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from ingest.command.bench.serve.record import Record
from workers.sla import SlaTable

PERCENTILES: Final = (50, 90, 99)
ALL: Final = "all"


def percentile(values: Iterable[float], percent: int) -> float | None:
    """The smallest value that is at least as large as so many percent of all; None of none."""
    ordered = sorted(values)
    if not ordered:
        return None
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]


def rows_of(records: Sequence[Record], table: SlaTable, seconds: float) -> list[dict[str, Any]]:
    """One row a class that was asked, most urgent first, and the last for all.

    seconds: in which the records arrived; rates are of that
    """
    classes = [sla.name for sla in table if any(r.sla == sla.name for r in records)]
    rows = [row_of(name, [r for r in records if r.sla == name], table, seconds) for name in classes]
    return [*rows, row_of(ALL, records, table, seconds)]


def row_of(name: str, records: Sequence[Record], table: SlaTable, seconds: float) -> dict[str, Any]:
    """What was refused, failed, or not answered is a promise that was not kept."""
    kept = [record for record in records if record.is_kept(table)]
    counts = {
        status: sum(r.status == status for r in records)
        for status in ("finished", "refused", "failed", "unanswered")
    }
    row: dict[str, Any] = {"sla": name, "requests": len(records), **counts}
    row["attainment"] = round(len(kept) / len(records), 4) if records else None
    row["target"] = None if name == ALL else table[name].attainment
    row["goodput_rps"] = round(len(kept) / seconds, 4)
    row["output_tokens_per_s"] = round(sum(r.output_tokens for r in records) / span(records), 2)
    measured = {
        "ttft_ms": [r.ttft_ms for r in records if r.ttft_ms is not None],
        "tpot_ms": [r.tpot_ms for r in records if r.tpot_ms is not None],
        "itl_ms": [gap for r in records for gap in r.itl_ms],
    }
    for measure, values in measured.items():
        for percent in PERCENTILES:
            row[f"{measure}_p{percent}"] = rounded(percentile(values, percent))
    row["late_ms_p99"] = rounded(percentile([r.late_ms for r in records], 99))
    return row


def span(records: Sequence[Record]) -> float:
    """Seconds from the first arrival to the last end."""
    ends = [record.end_s for record in records if record.end_s is not None]
    begins = [record.at_s for record in records]
    return max(max(ends, default=0.0) - min(begins, default=0.0), 1e-3)


def rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)
