"""The classes as `lockstep status` shows them: what waits, what is promised, what was kept."""

from rich.table import Table

from ingest.metrics.class_rows import Row
from router.placement import shown_ms


def classes_table(rows: list[Row]) -> Table:
    """For a person. Columns that say nothing just now are left out: a line a class is 80 wide."""
    said = [
        (row["sla"], waiting(row), wait_now(row), promise(row), kept(row), broken(row))
        for row in rows
    ]
    heads = ("class", "waiting", "wait now", "promised", "kept", "not kept")
    shown = [n for n, cells in enumerate(zip(*said, strict=True)) if any(cells)]
    table = Table(*(heads[n] for n in shown), box=None, pad_edge=False)
    for cells in said:
        table.add_row(*(cells[n] for n in shown))
    return table


def wait_now(row: Row) -> str:
    """How long a new one waits, as far as that can be predicted; "": it does not."""
    return "" if (row["wait_ms"] or 0) < 1 else shown_ms(row["wait_ms"])


def waiting(row: Row) -> str:
    """How many, and of how many at most, while there are any."""
    is_all = row["most"] is None or not row["waiting"]
    return str(row["waiting"]) if is_all else f"{row['waiting']} of {row['most']}"


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
