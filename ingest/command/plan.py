"""`lockstep plan`: what a node could take, before anybody buys it; in a simulation.

The real policy and scheduler run on a virtual clock, pools are played by a cost model
(router/simulator). What is printed is capacity: the highest open-loop rate, in requests a second,
at which every class keeps its promises. No node need run.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Annotated, Any, Final

from rich.console import Console
from rich.table import Table
from typer import Option

from ingest.command.failure import USAGE, Failure
from router.simulator.azure import BadTrace, read_trace
from router.simulator.azure import Row as TraceRow
from router.simulator.capacity import Effort
from router.simulator.hardware import BadHardware, Hardware, load, names
from router.simulator.study import Load, Row, best_baseline, study
from router.simulator.systems import NAMES
from router.simulator.workload import Workload, load_workloads
from workers.sla import SlaTable

DEFAULT_HARDWARE: Final = "published"
TRACE: Final = "trace"
ENDINGS: Final = (".svg", ".png")
WEEK: Final = 7 * 24 * 60.0  # minutes


def plan_command(
    hardware: Annotated[
        str, Option(help=f"{', '.join(names())}, a TOML file like those, or `this`: measured here.")
    ] = DEFAULT_HARDWARE,
    model: Annotated[
        str, Option(help="With --hardware this: the model, a name. Absent: as configured.")
    ] = "",
    workload: Annotated[str, Option(help="Comma-separated, or `all` of the fixed set.")] = "chat",
    trace: Annotated[
        Path | None, Option(help="A CSV file in the format of the Azure traces, in their place.")
    ] = None,
    context: Annotated[
        str, Option(help="Token positions a request may take, comma-separated. Absent: the set's.")
    ] = "",
    system: Annotated[str, Option(help="Comma-separated. Absent: all.")] = ",".join(NAMES),
    seeds: Annotated[
        int, Option(min=1, max=1000, help="Runs of each, of which intervals are made.")
    ] = 1,
    minutes: Annotated[
        float, Option(min=1.0, max=WEEK, help="Of traffic in a run, at least; a week at most.")
    ] = 5.0,
    requests: Annotated[int, Option(min=20, max=10**6, help="In a run, at least.")] = 100,
    plot: Annotated[Path | None, Option(help="Draw capacity by context into this .svg, .png.")] = (
        None
    ),
    as_json: Annotated[bool, Option("--json", help="Print one JSON object with `rows`.")] = False,
) -> None:
    """Requests a second that a node can take: GPU alone, GPU and CPU, without each mechanism."""
    if plot is not None and plot.suffix not in ENDINGS:
        raise Failure(f"--plot: must end with {' or '.join(ENDINGS)}, got {plot.name!r}", USAGE)
    if plot is not None and not plot.parent.is_dir():
        raise Failure(f"--plot: must be a file in a folder that exists, got {plot}", USAGE)
    systems = known("--system", system, NAMES)
    workloads, table = load_workloads()
    loads = loads_of(workload, trace, context, hardware, model, workloads)
    effort = Effort(seeds=seeds, least_s=60 * minutes, least_requests=requests)
    rows = worked(systems, loads, table, effort)
    if plot is not None:
        from ingest.command.plan_figure import draw

        draw(rows, plot)
    print(json.dumps(as_object(rows, loads, effort))) if as_json else show(rows, loads, effort)


def worked(systems: list[str], loads: list[Load], table: SlaTable, effort: Effort) -> list[Row]:
    """Every case, with a bar on stderr."""
    from ingest.command.bench.progress import bar

    begin = time.monotonic()
    with bar() as shown:
        task = shown.add_task("simulating", total=None)

        def tell(what: str, done: int, total: int) -> None:
            told = f"{what}{time_left(time.monotonic() - begin, done, total)}"
            shown.update(task, description=told, completed=done, total=total)
            if not shown.console.is_terminal:
                print(f"{done}/{total} {told}", file=sys.stderr, flush=True)

        processes = len(os.sched_getaffinity(0))
        return study(systems, loads, table, effort, processes=processes, tell=tell)


def time_left(elapsed_s: float, done: int, total: int) -> str:
    """What is to come, in words, as if all cases took equally long."""
    left_s = elapsed_s / done * (total - done)
    if done == total:
        return ""
    return f", about {left_s / 60:.0f} min left" if left_s >= 90 else f", about {left_s:.0f} s left"


def loads_of(
    workload: str,
    trace: Path | None,
    context: str,
    hardware: str,
    model: str,
    workloads: dict[str, Workload],
) -> list[Load]:
    """What is asked for. Raises Failure."""
    contexts = numbers(context)
    if trace is not None:
        node = hardware_of(hardware, model)
        rows = trace_of(trace)
        longest = max(row.prompt + row.output for row in rows)
        found = [Load(TRACE, node, contexts or (min(longest, node.context),), trace=tuple(rows))]
    else:
        chosen = list(workloads) if workload == "all" else known("--workload", workload, workloads)
        found = []
        for name in chosen:
            one = workloads[name]
            node = hardware_of(hardware if one.node == "any" else one.node, model)
            found.append(Load(name, node, contexts or one.contexts, one))
    return [fitting(one) for one in found]


def fitting(load: Load) -> Load:
    """Without the contexts that the model or no pool of the node can hold. Raises Failure."""
    node = load.hardware
    most = min(node.context, max(pool.tokens for pool in node.pools.values()))
    contexts = tuple(one for one in load.contexts if one <= most)
    if not contexts:
        raise Failure(f"--context: {node.says} holds {most} token positions at most", USAGE)
    return Load(load.name, node, contexts, load.workload, load.trace)


def hardware_of(name: str, model: str) -> Hardware:
    """Raises Failure."""
    if not name:
        raise Failure("--hardware: must be a name, a TOML file or `this`, got ''", USAGE)
    if name == "this":
        from ingest.command.plan_machine import this_machine

        return this_machine(model)
    try:
        return load(name)
    except BadHardware as error:
        raise Failure(f"--hardware: {error}", USAGE) from None


def trace_of(path: Path) -> list[TraceRow]:
    """Raises Failure."""
    try:
        return read_trace(path)
    except BadTrace as error:
        raise Failure(f"--trace: {error}", USAGE) from None


def known(option: str, text: str, names: Any) -> list[str]:
    """Names out of "a,b". Raises Failure."""
    given = [part.strip() for part in text.split(",")]
    for name in given:
        if name not in names:
            raise Failure(f"{option}: must be of {', '.join(names)}, got {name!r}", USAGE)
    return given


def numbers(text: str) -> tuple[int, ...]:
    """Raises Failure."""
    if not text:
        return ()
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) >= 512 for part in parts):
        raise Failure(f"--context: must be numbers of 512 or more, got {text!r}", USAGE)
    return tuple(sorted({int(part) for part in parts}))


def as_object(rows: list[Row], loads: list[Load], effort: Effort) -> dict[str, Any]:
    """What --json prints."""
    return {
        "rows": [
            {
                "system": row.system,
                "workload": row.workload,
                "context": row.context,
                "capacity_rps": round(row.capacity_rps, 5),
                "low_rps": round(row.low_rps, 5),
                "high_rps": round(row.high_rps, 5),
                "chosen": row.chosen,
            }
            for row in rows
        ],
        "hardware": {load.name: load.hardware.says for load in loads},
        "seeds": effort.seeds,
        "least_s": effort.least_s,
        "least_requests": effort.least_requests,
    }


def show(rows: list[Row], loads: list[Load], effort: Effort) -> None:
    """A table for each workload, contexts across; and what the CPU brings, in words."""
    console = Console()
    for one in loads:
        title = f"{one.name} on {one.hardware.says}: requests a second"
        heads = [f"{context // 1024}k" for context in one.contexts]
        table = Table("system", *heads, "best with", title=title)
        for system in dict.fromkeys(row.system for row in rows):
            mine = [row for row in rows if (row.system, row.workload) == (system, one.name)]
            cells = [f"{row.capacity_rps:.3f}" for row in mine]
            table.add_row(system, *cells, mine[-1].chosen)
        console.print(table)
        for context in one.contexts:
            console.print(gain(rows, one.name, context))
    console.print(
        f"Simulated: {effort.seeds} runs a case, {effort.least_s / 60:.0f} minutes and "
        f"{effort.least_requests} requests at least; every class keeps its promises."
    )


def gain(rows: list[Row], workload: str, context: int) -> str:
    """What both processors bring against the best baseline, in a sentence."""
    ours = next((r for r in rows if row_is(r, "gpu+cpu", workload, context)), None)
    best = best_baseline(rows, workload, context)
    if ours is None or best is None:
        return ""
    if best.capacity_rps <= 0:
        return f"{context}: gpu+cpu {ours.capacity_rps:.3f}; no baseline keeps all promises"
    part = ours.capacity_rps / best.capacity_rps - 1
    low = ours.low_rps / best.high_rps - 1 if best.high_rps else 0.0
    high = ours.high_rps / best.low_rps - 1 if best.low_rps else 0.0
    return f"{context}: gpu+cpu {part:+.0%} ({low:+.0%} to {high:+.0%}) beside {best.system}"


def row_is(row: Row, system: str, workload: str, context: int) -> bool:
    return (row.system, row.workload, row.context) == (system, workload, context)
