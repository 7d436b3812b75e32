"""Writes the results of runs down: `python -m tests.chaos.table OUTCOMES.jsonl ...`.

Each run becomes a line of results.csv, in place of an earlier one of the same seed; the last column
of the fault matrix in README.md is made from that.
"""

import csv
import re
import sys
from collections.abc import Iterable
from pathlib import Path

import msgspec

from tests.chaos.faults.menu import MENU
from tests.chaos.storm import Outcome

HERE = Path(__file__).parent
README, RESULTS = HERE / "README.md", HERE / "results.csv"
COLUMNS = ("seed", "verdict", "model", "asked", "webhooks", "starts", "cut", "seconds", "faults")
Row = dict[str, str]


def read_results() -> list[Row]:
    if not RESULTS.exists():
        return []
    with RESULTS.open(newline="") as file:
        return list(csv.DictReader(file))


def write_results(rows: Iterable[Row]) -> None:
    with RESULTS.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(sorted(rows, key=lambda row: int(row["seed"])))


def row_of(outcome: Outcome) -> Row:
    kinds = sorted({what.partition(":")[0] for what in outcome.violations})
    return {
        "seed": str(outcome.seed),
        "verdict": " ".join(kinds) or "good",
        "model": outcome.model,
        "asked": str(outcome.asked),
        "webhooks": str(outcome.webhooks),
        "starts": str(outcome.starts),
        "cut": str(len(outcome.cut)),
        "seconds": str(outcome.seconds),
        "faults": " ".join(name for _, name, _ in outcome.faults),
    }


def with_results(readme: str, rows: list[Row]) -> str:
    """The page with the last cell of each line that names faults of the menu."""
    return "\n".join(with_result(line, rows) for line in readme.split("\n"))


def with_result(line: str, rows: list[Row]) -> str:
    cells = line.split("|")
    if len(cells) != 7 or not cells[1].strip().isdigit():
        return line
    names = set(re.findall(r"`(\w+)`", cells[4])) & MENU.keys()
    if names:
        ran = [row for row in rows if names & set(row["faults"].split())]
    elif "every run" in cells[4]:
        ran = rows
    else:
        return line
    bad = [row["seed"] for row in ran if row["verdict"] != "good"]
    told = f"{len(ran)} runs, " + (f"bad: {' '.join(bad)}" if bad else "all good")
    return "|".join([*cells[:5], f" {told} ", cells[6]])


def main(paths: list[str]) -> int:
    rows = {row["seed"]: row for row in read_results()}
    for path in paths:
        for line in Path(path).read_bytes().splitlines():
            row = row_of(msgspec.json.decode(line, type=Outcome))
            rows[row["seed"]] = row
    write_results(rows.values())
    README.write_text(with_results(README.read_text(), read_results()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
