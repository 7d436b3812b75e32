"""The tables of a load, for a person."""

from collections.abc import Mapping
from typing import Any, Final

from rich.console import Console
from rich.table import Table

HEADS: Final[Mapping[str, str]] = {
    "sla": "class",
    "requests": "requests",
    "refused": "refused",
    "failed": "failed",
    "unanswered": "unanswered",
    "attainment": "kept",
    "goodput_rps": "goodput/s",
    "output_tokens_per_s": "tokens/s",
}
MEASURES: Final[Mapping[str, str]] = {
    "ttft_ms": "TTFT",
    "tpot_ms": "TPOT",
    "itl_ms": "ITL",
}


def show(found: Mapping[str, Any]) -> None:
    """Two tables: what became of the requests, and how fast it was (p50, p90, p99)."""
    ends = Table(*HEADS.values(), box=None, title="what became of the requests")
    title = "ms from the scheduled arrival: p50 / p90 / p99"
    times = Table("class", *MEASURES.values(), box=None, title=title)
    for row in found["rows"]:
        ends.add_row(*("" if row[name] is None else str(row[name]) for name in HEADS))
        cells = (
            " / ".join("–" if (v := row[f"{m}_p{p}"]) is None else f"{v:.0f}" for p in (50, 90, 99))
            for m in MEASURES
        )
        times.add_row(row["sla"], *cells)
    console = Console()
    console.print(ends)
    console.print(times)
    if "beside" in found:
        beside = Table("quantity", "measured", "simulated", "ratio", title="beside the simulator")
        for row in found["beside"]:
            beside.add_row(*("" if value is None else str(value) for value in row.values()))
        console.print(beside)
    if (late := found["rows"][-1]["late_ms_p99"]) and late > 50:
        console.print(f"This client sent late (p99 {late:.0f} ms): it has too little CPU.")
