"""`lockstep bench serve`: loads the running node as asked, and shows what became of it."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final

from typer import Option

from ingest.command.bench.serve.beside import as_written, compared, simulate
from ingest.command.bench.serve.load import Load, wishes_of, wishes_of_trace
from ingest.command.bench.serve.report import page
from ingest.command.bench.serve.run import context_of, described, watched
from ingest.command.bench.serve.shown import show
from ingest.command.bench.serve.summary import rows_of
from ingest.command.failure import USAGE, Failure
from router.simulator.azure import BadTrace
from router.simulator.workload import Lengths, Wish
from workers.settings import settings
from workers.sla import SlaTable

MIX: Final = "realtime=0.3,standard=0.4,batch=0.3"
WAYS: Final = ("http", "redis")
ARRIVALS: Final = ("poisson", "gamma")
REQUESTS_MAX: Final = 1_000_000  # of one run, on average: all of them are drawn before it begins


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
    warmup: Annotated[float, Option(min=0.0, help="Seconds of the like before, not told.")] = 0.0,
    beside_simulator: Annotated[
        bool, Option("--beside-simulator", help="The same through the simulator, by its costs.")
    ] = False,
    patience: Annotated[float, Option(min=0.0, help="Seconds that late answers have.")] = 120.0,
    log: Annotated[Path | None, Option(help="Write a line of JSON for each request.")] = None,
    report: Annotated[Path | None, Option(help="Write one HTML file with pictures.")] = None,
    as_json: Annotated[bool, Option("--json", help="Print one JSON object with `rows`.")] = False,
) -> None:
    """Open-loop load on the running node: times, goodput and refusals, class by class."""
    config = settings()
    table = config.classes
    one_of("--via", via, WAYS)
    one_of("--arrivals", arrivals, ARRIVALS)
    if trace is None and rate * max(seconds, warmup) > REQUESTS_MAX:
        raise Failure(f"--rate: at most {REQUESTS_MAX:,} requests in all --seconds", USAGE)
    for option, path in (("--log", log), ("--report", report)):
        if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
            raise Failure(f"{option}: must be a file in a folder that exists, got {path}", USAGE)
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
    if warmup:
        before = wishes_of(replace(load, seconds=warmup, seed=seed + 1))
        watched(config, before, via, seed + 1, patience)
    hardware = described(config, context) if beside_simulator else None
    records = watched(config, wishes, via, seed, patience)
    found: dict[str, Any] = {
        "bench": "serve",
        "via": via,
        "model": config.model,
        "seed": seed,
        "arrivals": str(trace) if trace else arrivals,
        "rate": rate if trace is None else None,
        "seconds": seconds,
        "rows": rows_of(records, table, seconds),
    }
    if hardware is not None:
        simulated = simulate(as_written(wishes, records), hardware, table)
        found["beside"] = compared(records, simulated)
    write(log, lambda: "".join(json.dumps(r.line()) + "\n" for r in records))
    write(report, lambda: page(found, records))
    print(json.dumps(found)) if as_json else show(found)


def one_of(option: str, given: str, names: tuple[str, ...]) -> None:
    """Raises Failure."""
    if given not in names:
        raise Failure(f"{option}: must be {' or '.join(names)}, got {given!r}", USAGE)


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


def write(path: Path | None, text: Callable[[], str]) -> None:
    """Raises Failure."""
    if path is None:
        return
    try:
        path.write_text(text())
    except OSError as error:
        raise Failure(f"{path}: {error}") from None
