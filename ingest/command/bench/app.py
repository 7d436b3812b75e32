"""`lockstep bench`: its commands and their tables."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Table
from typer import Option

from ingest.command.bench import cpu as bench_cpu
from ingest.command.bench import models as bench_models
from ingest.command.bench import node as bench_node
from ingest.command.bench.progress import bar
from ingest.command.bench.queue_command import queue
from ingest.command.bench.serve.command import serve
from ingest.command.bench.soak_command import soak
from ingest.command.failure import USAGE, Failure
from workers.settings import settings

app = typer.Typer(add_completion=False, rich_markup_mode=None, help="Measure speed, beside a peer.")
KV_CASES: Final = ("resume", "suspend", "append", "fork", "step", "idle")
KV_TOKENS_MIN: Final = 256
GPU_PARTS: Final = (
    "exact", "copy", "gemv", "gemm", "attention", "decode", "prefill", "move", "both",
)  # fmt: skip
AsJson = Annotated[bool, Option("--json", help="Print one JSON object with `rows`.")]


@app.command()
def cpu(
    model: Annotated[
        str, Option(help="Comma-separated: these, or names of this node's models.")
    ] = ",".join(bench_models.DEFAULT),
    case: Annotated[str, Option(help="Comma-separated.")] = ",".join(bench_cpu.PHASES),
    sessions: Annotated[str, Option(help="Of decode, comma-separated.")] = "1,2,4,8,10,16,32",
    context: Annotated[
        str, Option(help="Tokens before the decoded ones. Absent: 128, and longer ones by model.")
    ] = "",
    threads: Annotated[str, Option(help="Comma-separated.")] = "1,2",
    prompt_tokens: Annotated[int, Option(min=1, help="Of each prefilled prompt.")] = 512,
    steps: Annotated[
        int | None, Option(min=1, help="Decode steps of a round. Absent: 8, fewer with many.")
    ] = None,
    isa: Annotated[
        str | None, Option(help="Keep us to avx2, avx512 or amx. Absent: the best that is there.")
    ] = None,
    rounds: Annotated[int, Option(min=1, help="How often each case is measured.")] = 5,
    peer: Annotated[
        bool | None, Option("--peer/--no-peer", help="llama.cpp beside us; absent: if installed.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Tokens/s of prefill and decode on the CPU, beside llama.cpp on the same file and threads."""
    with_peer = bench_cpu.has_peer() if peer is None else peer
    if with_peer and not bench_cpu.has_peer():
        raise Failure("--peer: llama-cpp-python is not installed: make bench-peers", USAGE)
    phases = [part.strip() for part in case.split(",")]
    if set(phases) - set(bench_cpu.PHASES):
        raise Failure(f"--case: must be of {', '.join(bench_cpu.PHASES)}, got {case!r}", USAGE)
    plan = bench_cpu.Plan(
        threads=numbers("--threads", threads),
        phases=phases,
        sessions=numbers("--sessions", sessions),
        contexts=numbers("--context", context) if context else [],
        prompt_tokens=prompt_tokens,
        steps=steps,
        rounds=rounds,
        isa=known_isa(isa),
    )
    with bar() as shown:
        task = shown.add_task("loading", total=None)

        def tell(what: str, done: int, total: int) -> None:
            shown.update(task, description=what, completed=done, total=total or None)

        def tell_case(what: str, done: int, total: int) -> None:
            tell(what, done, total)
            if not shown.console.is_terminal:
                print(f"{done + 1}/{total} {what}", file=sys.stderr, flush=True)

        models = [measured(name, tell) for name in model.split(",")]
        found = bench_cpu.measure(plan, models, with_peer, tell_case)
    print(json.dumps(found)) if as_json else show_cpu(found)


def known_isa(isa: str | None) -> str | None:
    """Raises Failure."""
    from kernels.cpu.host import usable_isas

    if isa is not None and isa not in usable_isas():
        raise Failure(f"--isa: this processor has {', '.join(usable_isas())}, got {isa!r}", USAGE)
    return isa


def measured(name: str, progress: bench_cpu.Progress) -> bench_models.Measured:
    """Raises Failure."""
    from workers.model.config import BadModel

    try:
        return bench_models.measured(name.strip(), settings().home, progress)
    except BadModel as error:
        raise Failure(str(error)) from None


@app.command()
def node(
    requests: Annotated[int, Option(min=16, help="Requests of one token.")] = 400,
    tokens: Annotated[int, Option(min=16, help="Output tokens of a long answer.")] = 256,
    sessions: Annotated[int, Option(min=1, help="Clients at once.")] = 16,
    step_ms: Annotated[float, Option(min=0.0, help="Time of a step that computes nothing.")] = 10.0,
    as_json: AsJson = False,
) -> None:
    """What the node itself costs, in microseconds a request and a token: HTTP, queue, store.

    Starts a node of its own whose engine computes nothing.
    """
    plan = bench_node.Plan(requests=requests, tokens=tokens, sessions=sessions, step_ms=step_ms)
    folder = bench_models.folder_of(settings().model)
    with bar() as shown:
        task = shown.add_task("starting", total=None)
        found = bench_node.measure(plan, folder, lambda what: shown.update(task, description=what))
    print(json.dumps(found)) if as_json else show_node(found)


@app.command()
def gpu(
    part: Annotated[str, Option(help="Comma-separated.")] = ",".join(GPU_PARTS),
    seconds: Annotated[int, Option(min=1, help="After which no further part begins.")] = 300,
    threads: Annotated[int, Option(min=0, help="Of the CPU; 0: as configured.")] = 0,
    out: Annotated[
        Path | None, Option(help="Written as it goes. Absent: bench/gpu.json of LOCKSTEP_HOME.")
    ] = None,
    fresh: Annotated[bool, Option("--fresh", help="Measure again what OUT has already.")] = False,
    rehearse: Annotated[
        bool, Option("--rehearse", help="Tiny shapes on an emulated driver: no GPU is needed.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """What the GPU reaches: same bits, bandwidth, products, a 27B stand-in, a moving session."""
    from ingest.command.bench.gpu.run import run, show

    parts = [name.strip() for name in part.split(",")]
    if set(parts) - set(GPU_PARTS):
        raise Failure(f"--part: must be of {', '.join(GPU_PARTS)}, got {part!r}", USAGE)
    config = settings()
    name = "gpu-rehearsal.json" if rehearse else "gpu.json"
    found = run(
        out or config.home / "bench" / name,
        seconds=seconds,
        threads=threads or config.num_threads,
        parts=",".join(parts),
        is_rehearsal=rehearse,
        is_fresh=fresh,
    )
    print(json.dumps(found)) if as_json else show(found)


@app.command()
def kv(
    model: Annotated[str, Option(help="135M-default, 1.5B, or a name of this node's models.")] = (
        "135M-default"
    ),
    case: Annotated[str, Option(help="Comma-separated.")] = ",".join(KV_CASES),
    tokens: Annotated[
        str, Option(help="Of the sessions, comma-separated. Absent: 1024,8192; of 1.5B 32768.")
    ] = "",
    threads: Annotated[int, Option(min=0, help="Of the CPU; 0: as configured.")] = 0,
    sessions: Annotated[int, Option(min=1, help="Idle ones.")] = 10_000,
    rounds: Annotated[int, Option(min=1, help="How often each case is measured.")] = 5,
    as_json: AsJson = False,
) -> None:
    """Resuming a session beside computing it again; writing, forking and keeping sessions."""
    from ingest.command.bench.kv.measure import measure
    from ingest.command.bench.kv.plan import Plan

    cases = [part.strip() for part in case.split(",")]
    if set(cases) - set(KV_CASES):
        raise Failure(f"--case: must be of {', '.join(KV_CASES)}, got {case!r}", USAGE)
    lengths = numbers("--tokens", tokens) if tokens else []
    if lengths and min(lengths) < KV_TOKENS_MIN:
        raise Failure(f"--tokens: a session is {KV_TOKENS_MIN} tokens at least", USAGE)
    config = settings()
    plan = Plan(cases, lengths, rounds, threads or config.num_threads, sessions)
    with bar() as shown:
        task = shown.add_task("loading", total=None)

        def tell(what: str, done: int, total: int) -> None:
            shown.update(task, description=what, completed=done, total=total or None)

        chosen = measured(model, tell)
        found = measure(plan, chosen, config.home / "bench", tell)
    print(json.dumps(found)) if as_json else show_kv(found)


app.command()(queue)
app.command()(serve)
app.command()(soak)


def numbers(option: str, text: str) -> list[int]:
    """Positive numbers out of "1,2,4". Raises Failure."""
    parts = text.split(",")
    if not all(part.strip().isdigit() and int(part) > 0 for part in parts):
        raise Failure(f"{option}: must be numbers like 1,2,4, got {text!r}", USAGE)
    return sorted({int(part) for part in parts})


def show_cpu(found: dict[str, Any]) -> None:
    peer, limits = found["peer"], found["limits"]
    names = ["ours", f"{peer['name']} {peer['version']}", "ratio"] if peer else ["ours"]
    keys = ("ours", "peer", "ratio") if peer else ("ours",)
    heads = ("case", "model", "threads", "sessions", "context")
    table = Table(*heads, *names, "GMAC/s core", "GB/s", "MiB", title="tokens/s (medians)")
    for row in found["rows"]:
        values = (row.get(name) for name in (*keys, "gmacs_per_core", "gb_per_s"))
        shown = ("" if value is None else f"{value:.2f}" for value in values)
        cells = (*(str(row[name]) for name in heads), *shown, str(row["resident_mib"]))
        table.add_row(*cells)
    console = Console()
    console.print(table)
    read, rate = limits["read_gb_per_s"], limits["maddubs_gmacs_per_core"]
    console.print(f"limits: read {read} GB/s with 2 threads, maddubs + paddw {rate} GMAC/s a core")
    console.print(found["processor"], "·", peer.get("note", "") if peer else "")
    if found["busy"] > 0.5:
        busy = f"{found['busy']:.1f}"
        console.print(f"The machine was busy before (load {busy}): measure again when it is not.")


def show_node(found: dict[str, Any]) -> None:
    latency = Table("latency of a one-token request, µs", "p50", "p99")
    cost = Table("CPU time, µs", "a request", "a token")
    for row in found["rows"]:
        if row["case"] == "latency":
            latency.add_row(row["path"], f"{row['p50']:.0f}", f"{row['p99']:.0f}")
        else:
            cost.add_row(row["process"], f"{row['request']:.0f}", f"{row['token']:.1f}")
    console = Console()
    console.print(latency)
    console.print(cost)


def show_kv(found: dict[str, Any]) -> None:
    heads = ("case", "model", "tokens", "tier", "unit", "ours", "goal", "ratio")
    table = Table(*heads, "beside", title=f"medians of {found['rounds']}")
    for row in found["rows"]:
        rest = [f"{name} {value}" for name, value in row.items() if name not in heads]
        cells = ("" if row.get(name) is None else str(row[name]) for name in heads)
        table.add_row(*cells, ", ".join(rest))
    Console().print(table)
