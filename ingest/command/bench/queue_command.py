"""`lockstep bench queue`: its options and its table."""

import json
from typing import Annotated, Any

from rich.console import Console
from rich.table import Table
from typer import Option

from ingest.command.bench.models import folder_of
from ingest.command.bench.progress import bar
from ingest.command.bench.queue_rate import Plan, measure
from workers.settings import settings


def queue(
    jobs: Annotated[int, Option(min=16, max=500_000, help="Of one round.")] = 4000,
    rounds: Annotated[int, Option(min=1, help="By us, then by RQ, so often.")] = 3,
    places: Annotated[int, Option(min=1, max=256, help="Of the pool.")] = 16,
    as_json: Annotated[bool, Option("--json", help="Print one JSON object with `rows`.")] = False,
) -> None:
    """Jobs a second through stream, router, queue and worker without a model, beside plain RQ.

    Starts a node of its own whose engine computes nothing.
    """
    plan, folder = Plan(jobs=jobs, rounds=rounds, places=places), folder_of(settings().model)
    with bar() as shown:
        task = shown.add_task("starting", total=None)
        found = measure(plan, folder, lambda what: shown.update(task, description=what))
    print(json.dumps(found)) if as_json else show(found)


def show(found: dict[str, Any]) -> None:
    """Rates, and below them what one job of ours cost."""
    rates = Table("jobs a second", "median", "of each round", "store us", "worker us")
    for row in found["rows"]:
        runs = ", ".join(map(str, row["runs"]))
        worker = row.get("worker_us") or row["router_us"] + row["pool_us"]
        rates.add_row(
            row["case"],
            f"{row['jobs_per_s']:.0f}",
            runs,
            f"{row['store_us']:.0f}",
            f"{worker:.0f}",
        )
    ours = found["rows"][0]
    costs = Table("of one job of ours", "", title="router and pool in us of CPU; the rest counted")
    for name in ("router_us", "pool_us", "round_trips", "scripts", "commands", "log_bytes"):
        costs.add_row(name.replace("_", " "), f"{ours[name]:.1f}")
    console = Console()
    console.print(rates)
    console.print(costs)
    console.print(f"{found['ratio']:.2f} times RQ's SimpleWorker, on {found['cores']} cores")
