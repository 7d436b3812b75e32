"""A look at the node as tables of a terminal: for `lockstep top`."""

from collections import deque
from collections.abc import Mapping
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ingest.command.classes import classes_table
from router.placement import shown_ms

BLOCKS: Final = " ▁▂▃▄▅▆▇█"
KEPT: Final = 60  # looks
TONES: Final = {"gpu": "magenta", "cpu": "cyan"}
FRAME: Final = 14  # lines of all but the jobs, with two pools and three classes
LEAST: Final = 3  # jobs that are shown on the lowest of screens

Look = Mapping[str, Any]


class Speeds:
    """Tokens a second of the last looks."""

    def __init__(self) -> None:
        self.seen: deque[float] = deque(maxlen=KEPT)

    def line(self, now: float) -> str:
        """With the newest one, as blocks of text; the highest is the highest one of them."""
        self.seen.append(now)
        most = max(self.seen) or 1.0
        return "".join(BLOCKS[round(8 * value / most)] for value in self.seen)


def screen(look: Look, speeds: Speeds, height: int = 40) -> RenderableType:
    """All of it; height: lines of the terminal."""
    speed = sum(pool["tokens_per_s"] for pool in look["pools"])
    head = Text.assemble(
        ("lockstep ", "bold"), (look["model"] or "no pool reports", "dim"), "   ",
        (f"{speed:.1f}", "bold"), " tok/s  ", (speeds.line(speed), "green"),
    )  # fmt: skip
    told = len(look["pools"]) + len(notes(look)) + len(look["classes"])
    room = max(LEAST, height - FRAME - told)
    num_failed = min(2, len(look["failed"]))
    parts: list[RenderableType] = [head, "", pools_table(look), *notes(look)]
    parts += ["", classes_table(look["classes"])]
    parts += ["", jobs_table("running", look["running"][: room - num_failed], look["at_ms"])]
    if num_failed:
        parts += ["", jobs_table("failed last", look["failed"][:num_failed], look["at_ms"])]
    parts += ["", footer(look)]
    return Group(*parts)


def pools_table(look: Look) -> Table:
    """A line a pool, 80 wide. "predicts": by how much step times differ from what was predicted."""
    heads = ("pool", "state", "tok/s", "step", "places", "KV blocks", "queued", "predicts")
    table = Table(*heads, box=None, pad_edge=False)
    for pool in look["pools"]:
        used = pool["total_blocks"] - pool["free_blocks"]
        table.add_row(
            Text(pool["pool"], style=f"bold {TONES.get(pool['pool'], '')}"),
            pool["state"],
            f"{pool['tokens_per_s']:.1f}",
            shown_ms(pool["step_ms"]) if pool["step_ms"] else "",
            f"{bar(pool['running'], pool['capacity'])} {pool['running']}/{pool['capacity']}",
            f"{bar(used, pool['total_blocks'])} {used}/{pool['total_blocks']}",
            str(pool["queued"]),
            f"±{pool['cost']['error']:.0%}" if pool["cost"] else "",
        )
    return table


def notes(look: Look) -> list[Text]:
    """Why a pool is as it is, a line each, as far as the terminal is wide."""
    said = [f"{pool['pool']}: {pool['note']}" for pool in look["pools"] if pool["note"]]
    return [Text(line, style="dim", no_wrap=True, overflow="ellipsis") for line in said]


def bar(part: float, whole: float, width: int = 6) -> str:
    """Eighths of a character are not needed: a glance is enough."""
    full = round(width * min(1.0, part / whole)) if whole else 0
    return "█" * full + "░" * (width - full)


def jobs_table(title: str, jobs: list[dict[str, Any]], now_ms: int) -> Table:
    """One line a job, never more than the terminal is wide."""
    table = Table(box=None, pad_edge=False)
    table.add_column(title, min_width=24, max_width=40, no_wrap=True, overflow="ellipsis")
    for head in ("class", "on", "tokens", "since" if title == "running" else "first token"):
        table.add_column(head, no_wrap=True)
    table.add_column("why", no_wrap=True, overflow="ellipsis", ratio=1)
    for job in jobs:
        plan = job.get("plan") or job.get("pool") or ""
        first = job.get("ttft_ms")
        since = now_ms - job.get("started_ms", now_ms) if title == "running" else first
        table.add_row(
            job["full_id"],
            job.get("sla", ""),
            Text(plan, style=TONES.get(plan.partition("+")[0], "")),
            str(job["tokens"]),
            "" if since is None else shown_ms(max(0, since)),
            job.get("error") or job.get("reason") or "",
        )
    if not jobs:
        table.add_row(Text("nothing", style="dim"))
    return table


def footer(look: Look) -> Text:
    """Where sessions are, which plans were made, which programs were restarted."""
    tiers = [f"{tier['tier']} {tier['pool']} {tier['sessions']}" for tier in look["tiers"]]
    plans = [f"{plan} {sum(whys.values())}" for plan, whys in look["placements"].items()]
    again = [f"{n} {p['restarts']}" for n, p in look["programs"].items() if p["restarts"]]
    parts = ["sessions: " + (", ".join(tiers) or "none"), "placed: " + (", ".join(plans) or "none")]
    if again:
        parts.append("restarted: " + ", ".join(again))
    if not look["routers"]:
        parts.append("no router runs")
    return Text("   ".join(parts), style="dim")
