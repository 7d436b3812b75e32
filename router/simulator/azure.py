"""Reads a trace of requests in the format of the Azure LLM inference datasets.

    TIMESTAMP,ContextTokens,GeneratedTokens
    2023-11-16 18:15:46.6805900,374,44

Seven digits of a second, sometimes a zone; sorted or not. BurstGPT's columns are read as well:
Timestamp (seconds), Request tokens, Response tokens. A row without tokens is one that failed, and
is left out. Source: github.com/Azure/AzurePublicDataset, AzureLLMInferenceDataset2023.md (CC-BY).
"""

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from router.simulator.workload import Wish

COLUMNS: Final = (
    ("timestamp", "contexttokens", "generatedtokens"),
    ("timestamp", "request tokens", "response tokens"),
)


class BadTrace(ValueError):
    """The file is no trace: one sentence that names the line."""


@dataclass(frozen=True, slots=True)
class Row:
    """A request; at_s from the first one."""

    at_s: float
    prompt: int
    output: int


def read_trace(path: Path) -> list[Row]:
    """By time, the first at 0. Raises BadTrace."""
    try:
        with path.open(newline="") as file:
            rows = sorted(rows_of(csv.reader(file), str(path)), key=lambda row: row.at_s)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadTrace(f"{path}: cannot be read: {error}") from None
    if len(rows) < 2:
        raise BadTrace(f"{path}: holds fewer than two requests")
    begin_s = rows[0].at_s
    return [Row(row.at_s - begin_s, row.prompt, row.output) for row in rows]


def rows_of(lines: Iterator[list[str]], name: str) -> Iterator[Row]:
    heads = [head.strip().lower() for head in next(lines, [])]
    wanted = next((columns for columns in COLUMNS if set(columns) <= set(heads)), None)
    if wanted is None:
        known = " or ".join(", ".join(columns) for columns in COLUMNS)
        raise BadTrace(f"{name}: line 1 must name the columns {known}, got {', '.join(heads)}")
    places = [heads.index(column) for column in wanted]
    for number, line in enumerate(lines, 2):
        if not line:
            continue
        try:
            when, prompt, output = (line[place] for place in places)
            row = Row(seconds(when), int(prompt), int(output))
        except (ValueError, IndexError):
            raise BadTrace(f"{name}: line {number} is no request: {','.join(line)[:80]}") from None
        if row.prompt > 0 and row.output > 0:
            yield row


def seconds(when: str) -> float:
    """Of a date with up to seven digits of a second, or of a plain number. Raises ValueError."""
    try:
        return float(when)
    except ValueError:
        pass
    date, dot, rest = when.strip().partition(".")
    digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
    zone = rest[len(digits) :]
    return datetime.fromisoformat(date + zone).timestamp() + float(f"0{dot}{digits or 0}")


def rate_of(rows: list[Row]) -> float:
    """Requests a second, on average."""
    return (len(rows) - 1) / max(1e-9, rows[-1].at_s)


def replay(
    rows: list[Row], rate: float, context: int, horizon_s: float, shares: Mapping[str, float]
) -> list[Wish]:
    """The trace, its intervals stretched so that it has this rate; repeated up to the horizon.

    shares  of the classes: each row takes the class that is furthest behind its share
    """
    stretch, found = rate_of(rows) / rate, list[Wish]()
    given = dict.fromkeys(shares, 0)
    gap_s = rows[-1].at_s / (len(rows) - 1)
    begin_s = 0.0
    while True:
        for row in rows:
            at_s = (begin_s + row.at_s) * stretch
            if at_s > horizon_s:
                return found
            sla = min(shares, key=lambda name: given[name] / shares[name])
            given[sla] += 1
            prompt = min(row.prompt, context - 1)
            output = min(row.output, context - prompt)
            name = f"row{len(found)}"
            found.append(Wish(name, sla, 1000 * at_s, prompt, output, output, context=context))
        begin_s += rows[-1].at_s + gap_s
