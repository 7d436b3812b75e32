"""The report of a load: one HTML file with the table, and two pictures drawn as SVG.

share of requests          ms to the first token
1 |      ____-----         |  ·    ·  ·
  |   _/                   | · ·  ·  ··     each point a request, where it arrived
0 |__/________ ms (log)    |·_·_·___·___ s
"""

from collections.abc import Sequence
from html import escape
from math import log10
from typing import Any, Final

from ingest.command.bench.serve.record import Record

WIDTH, HEIGHT, MARGIN = 560, 280, 44
COLORS: Final = ("#c0392b", "#2471a3", "#239b56", "#b7950b", "#7d3c98", "#566573")
STYLE: Final = (
    "body{font:14px sans-serif;margin:2em;max-width:72em}table{border-collapse:collapse}"
    "td,th{border:1px solid #ccc;padding:3px 8px;text-align:right}th{background:#f4f4f4}"
    "svg{background:#fff;border:1px solid #ddd;margin:8px}text{font:11px sans-serif}"
)
Points = list[tuple[float, float]]


def page(found: dict[str, Any], records: Sequence[Record]) -> str:
    """The whole file. found: the object that --json prints."""
    classes = [row["sla"] for row in found["rows"][:-1]]
    pictures = "".join((shares_picture(records, classes), times_picture(records, classes)))
    about = ", ".join(f"{k} {v}" for k, v in found.items() if k != "rows" and v is not None)
    return (
        f"<!doctype html><meta charset='utf-8'><title>lockstep bench serve</title>"
        f"<style>{STYLE}</style><h1>lockstep bench serve</h1><p>{escape(about)}</p>"
        f"<p>Times count from the moment at which a request was to be sent. What was refused, "
        f"failed or not answered has missed its promise.</p>{table(found['rows'])}{pictures}"
    )


def table(rows: Sequence[dict[str, Any]]) -> str:
    heads = "".join(f"<th>{escape(name)}</th>" for name in rows[0])
    lines = ("".join(f"<td>{cell(value)}</td>" for value in row.values()) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><tr>{heads}</tr>{body}</table>"


def cell(value: Any) -> str:
    return "" if value is None else escape(str(value))


def shares_picture(records: Sequence[Record], classes: Sequence[str]) -> str:
    """The share of all requests of a class that had its first token within so many ms."""
    lines: dict[str, Points] = {}
    for name in classes:
        mine = [record for record in records if record.sla == name]
        times = sorted(max(1.0, r.ttft_ms) for r in mine if r.ttft_ms is not None)
        lines[name] = [(log10(ms), (n + 1) / len(mine)) for n, ms in enumerate(times)]
    high = max((points[-1][0] for points in lines.values() if points), default=1.0)
    marks = [(float(n), f"{10**n} ms") for n in range(int(high) + 2)]
    return picture("first token within (share of requests)", lines, marks, 1.0, joined=True)


def times_picture(records: Sequence[Record], classes: Sequence[str]) -> str:
    """Each request's time to the first token, by its arrival."""
    lines: dict[str, Points] = {name: [] for name in classes}
    for record in records:
        if record.ttft_ms is not None:
            lines[record.sla].append((record.at_s, record.ttft_ms))
    high = max((x for points in lines.values() for x, _ in points), default=1.0)
    most = max((y for points in lines.values() for _, y in points), default=1.0)
    marks = [(high * n / 4, f"{high * n / 4:.0f} s") for n in range(5)]
    return picture("ms to the first token, by arrival", lines, marks, most, joined=False)


def picture(
    title: str,
    lines: dict[str, Points],
    marks: Sequence[tuple[float, str]],
    most: float,
    *,
    joined: bool,
) -> str:
    """One SVG. marks: of the x axis; most: the largest y."""
    low, high = marks[0][0], max(marks[-1][0], marks[0][0] + 1e-9)

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - low) / (high - low) * (WIDTH - 2 * MARGIN)
        up = y / (most or 1.0) * (HEIGHT - 2 * MARGIN)
        return round(MARGIN + across, 1), round(HEIGHT - MARGIN - up, 1)

    parts = [f"<text x='{MARGIN}' y='18'>{escape(title)}</text>"]
    for x, label in marks:
        parts.append(f"<text x='{place(x, 0)[0]}' y='{HEIGHT - 24}'>{label}</text>")
    for share in (0.0, 0.5, 1.0):
        value = most * share
        parts.append(f"<text x='4' y='{place(low, value)[1]}'>{value:.4g}</text>")
    for number, (name, points) in enumerate(lines.items()):
        color, placed = COLORS[number % len(COLORS)], [place(x, y) for x, y in points]
        parts.append(
            f"<text x='{WIDTH - 100}' y='{18 + 14 * number}' fill='{color}'>{escape(name)}</text>"
        )
        if joined and placed:
            path = " ".join(f"{x},{y}" for x, y in placed)
            parts.append(f"<polyline points='{path}' fill='none' stroke='{color}'/>")
        else:
            parts += [f"<circle cx='{x}' cy='{y}' r='2' fill='{color}'/>" for x, y in placed]
    return f"<svg width='{WIDTH}' height='{HEIGHT}'>{''.join(parts)}</svg>"
