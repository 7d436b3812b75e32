"""`lockstep bench soak`: its options and its tables."""

import json
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console
from rich.table import Table
from typer import Exit, Option

from ingest.command.bench.models import folder_of
from ingest.command.bench.progress import bar
from ingest.command.bench.soak import Plan, measure
from ingest.command.failure import FAILED
from workers.settings import settings


def soak(
    minutes: Annotated[float, Option(min=0.05, help="Of the load, the warm-up included.")] = 30.0,
    warm_up: Annotated[float, Option(min=0.0, help="Minutes before anything counts.")] = 5.0,
    concurrent: Annotated[int, Option(min=1, help="Jobs at once.")] = 1000,
    sessions: Annotated[int, Option(min=0, help="Conversations among them.")] = 64,
    threads: Annotated[int, Option(min=1, help="Of the CPU pool.")] = 1,
    sample_s: Annotated[float, Option(min=0.1, help="Seconds between two looks.")] = 10.0,
    seed: Annotated[int, Option(help="Of what is asked.")] = 1,
    out: Annotated[Path | None, Option(help="Each look as a line of JSON, as it is taken.")] = None,
    as_json: Annotated[bool, Option("--json", help="Print one JSON object with `rows`.")] = False,
) -> None:
    """Whether a node stays flat for long under many jobs at once: memory, latency, keys.

    Starts a node of its own with the configured model, best a tiny one. Exit code 1: it is not
    flat, or a job was lost.
    """
    plan = Plan(60 * minutes, 60 * warm_up, concurrent, sessions, seed, sample_s, threads)
    with bar() as shown:
        task = shown.add_task("starting", total=None)
        folder = folder_of(settings().model)
        found = measure(plan, folder, out, lambda what: shown.update(task, description=what))
    print(json.dumps(found)) if as_json else show(found)
    if not is_flat(found):
        raise Exit(FAILED)


def is_flat(found: dict[str, Any]) -> bool:
    verdict = found["verdict"]
    flat = verdict["memory_flat"] and verdict["latency_flat"]
    return flat and not verdict["leaked"] and not found["lost"]


def show(found: dict[str, Any]) -> None:
    memory = Table(
        "process", "resident MiB, first and last", "growth in 10 min", "files", "threads"
    )
    for row in found["rows"]:
        pairs = (" to ".join(map(str, row[n])) for n in ("resident_mib", "open_files", "threads"))
        resident, files, threads = pairs
        growth = f"{row['growth_mib_per_10min']:.2f}"
        memory.add_row(row["process"], resident, growth, files, threads)
    latency = Table("third", "jobs", "jobs a second", "p50 ms", "p99 ms")
    for part in found["thirds"]:
        cells = (part[n] for n in ("third", "jobs", "jobs_per_s", "p50_ms", "p99_ms"))
        latency.add_row(*map(str, cells))
    console = Console()
    console.print(memory)
    console.print(latency)
    ends = ", ".join(f"{count} {end}" for end, count in found["ends"].items())
    console.print(f"ends: {ends}; lost: {found['lost']}")
    for name in ("keys", "files", "file_mib", "store_mib"):
        console.print(f"{name.replace('_', ' ')}: {found[name][0]} to {found[name][1]}")
    console.print(f"left of requests when their results had expired: {found['verdict']['leaked']}")
