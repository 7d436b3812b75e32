"""A look at the node as tables of a terminal: for `lockstep top`."""

from collections import deque
from collections.abc import Mapping
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ingest.command.classes import classes_table
from ingest.command.nodes import nodes_table, troubles
from router.placement import shown_ms
from workers.fleet.names import node_of, processor_of

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


def screen(look: Look, speeds: Speeds, height: int = 40, *, fleet: bool = False) -> RenderableType:
    """All of it; height: lines of the terminal; fleet: its nodes in place of this node's pools."""
    rows = look["nodes"] if fleet else look["pools"]
    told = told_of_nodes(look) if fleet else [pools_table(look), *notes(look)]
    speed = sum(row["tokens_per_s"] for row in rows)
    head = Text.assemble(
        ("lockstep ", "bold"), (headline(look, fleet), "dim"), "   ",
        (f"{speed:.1f}", "bold"), " tok/s  ", (speeds.line(speed), "green"),
    )  # fmt: skip
    room = max(LEAST, height - FRAME - len(rows) - len(told) + 1 - len(look["classes"]))
    num_failed = min(2, len(look["failed"]))
    parts: list[RenderableType] = [head, "", *told, "", classes_table(look["classes"])]
    parts += ["", jobs_table("running", look["running"][: room - num_failed], look["at_ms"])]
    if num_failed:
        parts += ["", jobs_table("failed last", look["failed"][:num_failed], look["at_ms"])]
    return Group(*parts, "", footer(look))


def headline(look: Look, fleet: bool) -> str:
    """What is looked at, and which model it serves."""
    told = look["nodes"] if fleet else [{"model": look["model"]}]
    models = ", ".join(sorted({row["model"] for row in told if row["model"]}))
    where = f"{len(told)} nodes, " if fleet else f"node {look['node']}, " if look["node"] else ""
    return where + (models or "no pool reports")


def told_of_nodes(look: Look) -> list[RenderableType]:
    """A line a node, and below why one does not take part."""
    nodes = look["nodes"]
    return [nodes_table(nodes), *(one_line(line, "red") for line in troubles(nodes))]


def pools_table(look: Look) -> Table:
    """A line a pool, 80 wide. "predicts": by how much step times differ from what was predicted."""
    heads = ("pool", "state", "tok/s", "step", "places", "KV blocks", "queued", "predicts")
    table = Table(*heads, box=None, pad_edge=False)
    for pool in look["pools"]:
        used = pool["total_blocks"] - pool["free_blocks"]
        table.add_row(
            Text(pool["processor"], style=f"bold {TONES.get(pool['processor'], '')}"),
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
    said = [f"{pool['processor']}: {pool['note']}" for pool in look["pools"] if pool["note"]]
    return [one_line(line, "dim") for line in said]


def one_line(text: str, style: str) -> Text:
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


def bar(part: float, whole: float, width: int = 6) -> str:
    """Eighths of a character are not needed: a glance is enough."""
    full = round(width * min(1.0, part / whole)) if whole else 0
    return "█" * full + "░" * (width - full)


def jobs_table(title: str, jobs: list[dict[str, Any]], now_ms: int) -> Table:
    """One line a job, never more than the terminal is wide."""
    table = Table(box=None, pad_edge=False)
    table.add_column(title, min_width=20, max_width=40, no_wrap=True, overflow="ellipsis")
    heads = ("class", "on", "tokens", "since" if title == "running" else "first token")
    for head, least in zip(heads, (8, 5, 6, 6), strict=True):
        table.add_column(head, no_wrap=True, min_width=least)
    table.add_column("why", no_wrap=True, overflow="ellipsis", ratio=1)
    for job in jobs:
        plan, node = plan_and_node(job)
        first = job.get("ttft_ms")
        since = now_ms - job.get("started_ms", now_ms) if title == "running" else first
        table.add_row(
            job["full_id"],
            job.get("sla", ""),
            Text(f"{plan} {node}" if node else plan, style=TONES.get(plan.partition("+")[0], "")),
            str(job["tokens"]),
            "" if since is None else shown_ms(max(0, since)),
            job.get("error") or job.get("reason") or "",
        )
    if not jobs:
        table.add_row(Text("nothing", style="dim"))
    return table


def plan_and_node(job: Mapping[str, Any]) -> tuple[str, str]:
    """gpu, cpu or two of them, and where it is now; "": of a node that is alone."""
    pool = job.get("pool") or ""
    return job.get("plan") or processor_of(pool), node_of(pool)


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
