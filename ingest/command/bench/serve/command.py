"""`lockstep bench serve`: loads the running node as asked, and shows what became of it."""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from secrets import token_hex
from typing import Annotated, Any, Final

from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from typer import Option

from ingest.command.bench.serve.by_http import ByHttp, ask, sample_ids
from ingest.command.bench.serve.by_redis import ByRedis
from ingest.command.bench.serve.drive import drive
from ingest.command.bench.serve.load import Load, Prompts, wishes_of, wishes_of_trace
from ingest.command.bench.serve.record import Record
from ingest.command.bench.serve.report import page
from ingest.command.bench.serve.summary import rows_of
from ingest.command.failure import USAGE, Failure
from router.simulator.azure import BadTrace
from router.simulator.workload import Lengths, Wish
from workers.settings import Settings, settings
from workers.sla import SlaTable
from workers.store import Store

MIX: Final = "realtime=0.3,standard=0.4,batch=0.3"
WAYS: Final = ("http", "redis")
ARRIVALS: Final = ("poisson", "gamma")
NO_NODE: Final = "no node answers at {url}: start one with `make start`, or set LOCKSTEP_PORT"


def serve(
    rate: Annotated[float, Option(min=0.001, help="Requests a second, on average.")] = 2.0,
    seconds: Annotated[float, Option(min=0.1, help="In which requests arrive.")] = 30.0,
    arrivals: Annotated[str, Option(help="poisson, or gamma: in bursts, by --shape.")] = "poisson",
    shape: Annotated[float, Option(min=0.01, help="Of gamma: below 1 comes in bursts.")] = 0.5,
    trace: Annotated[
        Path | None, Option(help="Arrivals and lengths from a CSV as Azure publishes them.")
    ] = None,
    speed: Annotated[float, Option(min=0.001, help="How many times as fast a trace runs.")] = 1.0,
    mix: Annotated[str, Option(help="Shares of the classes.")] = MIX,
    prompt_tokens: Annotated[int, Option(min=1, help="The median prompt.")] = 128,
    output_tokens: Annotated[int, Option(min=1, help="The median answer, at most.")] = 32,
    spread: Annotated[float, Option(min=0.0, help="Sigma of both, lognormal; 0: all alike.")] = 0.5,
    via: Annotated[str, Option(help="http or redis.")] = "http",
    seed: Annotated[int, Option(help="The same seed asks the same.")] = 1,
    patience: Annotated[float, Option(min=0.0, help="Seconds that late answers have.")] = 120.0,
    log: Annotated[Path | None, Option(help="Write a line of JSON for each request.")] = None,
    report: Annotated[Path | None, Option(help="Write one HTML file with pictures.")] = None,
    as_json: Annotated[bool, Option("--json", help="Print one JSON object with `rows`.")] = False,
) -> None:
    """Open-loop load on the running node: times, goodput and refusals, class by class."""
    config = settings()
    table = config.classes
    if via not in WAYS or arrivals not in ARRIVALS:
        raise Failure(f"--via is one of {WAYS}, --arrivals one of {ARRIVALS}", USAGE)
    context = context_of(config)
    longest = max(1, context // 2)
    load = Load(
        rate=rate,
        seconds=seconds,
        shape=1.0 if arrivals == "poisson" else shape,
        mix=mix_of(mix, table),
        prompt=Lengths(min(prompt_tokens, longest), spread, longest),
        output=Lengths(min(output_tokens, longest), spread, min(longest, 16 * output_tokens)),
        seed=seed,
    )
    wishes = planned(load, trace, speed, context)
    if not wishes:
        raise Failure("nothing arrives in that time: more --seconds or a higher --rate", USAGE)
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(f"{via}, {len(wishes)} requests", total=len(wishes))
        records = run(config, wishes, via, seed, patience, lambda n: bar.update(task, completed=n))
    found = {
        "bench": "serve",
        "via": via,
        "model": config.model,
        "seed": seed,
        "arrivals": str(trace) if trace else arrivals,
        "rate": rate if trace is None else None,
        "seconds": seconds,
        "rows": rows_of(records, table, seconds),
    }
    write(log, lambda: "".join(json.dumps(r.line()) + "\n" for r in records))
    write(report, lambda: page(found, records))
    print(json.dumps(found)) if as_json else show(found)


def planned(load: Load, trace: Path | None, speed: float, context: int) -> list[Wish]:
    """Raises Failure."""
    if trace is None:
        return wishes_of(load)
    try:
        most = max(1, context // 2)
        return wishes_of_trace(trace, load, speed=speed, longest=context, most_output=most)
    except BadTrace as error:
        raise Failure(str(error), USAGE) from None


def mix_of(text: str, table: SlaTable) -> dict[str, float]:
    """Shares by class. Raises Failure."""
    shares = {}
    for part in text.split(","):
        name, _, share = part.strip().partition("=")
        try:
            shares[name] = float(share or 1)
        except ValueError:
            shares[name] = -1.0
        if name not in table or not 0 < shares[name] < 1e9:
            known = ", ".join(table.names)
            raise Failure(f"--mix: must be like {MIX}, of {known}, got {text!r}", USAGE)
    return shares


def context_of(config: Settings) -> int:
    """The model's context, as the running node says. Raises Failure."""
    host, port = config.host, config.port
    try:
        status, _ = ask(host, port, "GET", "/readyz")
        models = ask(host, port, "GET", "/v1/models")[1] if status == 200 else None
    except OSError:
        raise Failure(NO_NODE.format(url=f"http://{host}:{port}")) from None
    if not models:
        raise Failure("the node is not ready: `lockstep doctor` says why")
    return int(models["data"][0]["max_model_len"])


def run(
    config: Settings,
    wishes: Sequence[Wish],
    via: str,
    seed: int,
    patience_s: float,
    progress: Callable[[int], None],
) -> list[Record]:
    """Every request's record."""
    prompts = Prompts(sample_ids(config.host, config.port), seed)
    name = f"bench{token_hex(4)}"

    async def go() -> list[Record]:
        way: ByHttp | ByRedis
        if via == "http":
            url = f"http://{config.host}:{config.port}"
            way = ByHttp(url, config.model, prompts, name)
        else:
            way = ByRedis(Store.of(config), prompts, name)
        records = await drive(wishes, way, patience_s, progress)
        way.look(records)
        return records

    return asyncio.run(go())


def write(path: Path | None, text: Callable[[], str]) -> None:
    """Raises Failure."""
    if path is None:
        return
    try:
        path.write_text(text())
    except OSError as error:
        raise Failure(f"{path}: {error}") from None


HEADS: Final[Mapping[str, str]] = {
    "sla": "class",
    "requests": "requests",
    "refused": "refused",
    "failed": "failed",
    "unanswered": "unanswered",
    "attainment": "kept",
    "goodput_rps": "goodput/s",
    "output_tokens_per_s": "tokens/s",
}
MEASURES: Final[Mapping[str, str]] = {
    "ttft_ms": "TTFT ms",
    "tpot_ms": "TPOT ms",
    "itl_ms": "ITL ms",
}


def show(found: Mapping[str, Any]) -> None:
    """Two tables: what became of the requests, and how fast it was (p50, p90, p99)."""
    ends = Table(*HEADS.values(), title="times from the scheduled arrival")
    times = Table("class", *(f"{name} p50 / p90 / p99" for name in MEASURES.values()))
    for row in found["rows"]:
        ends.add_row(*("" if row[name] is None else str(row[name]) for name in HEADS))
        cells = (
            " / ".join("–" if (v := row[f"{m}_p{p}"]) is None else f"{v:.0f}" for p in (50, 90, 99))
            for m in MEASURES
        )
        times.add_row(row["sla"], *cells)
    console = Console()
    console.print(ends)
    console.print(times)
    if (late := found["rows"][-1]["late_ms_p99"]) and late > 50:
        console.print(f"This client sent late (p99 {late:.0f} ms): it has too little CPU.")
