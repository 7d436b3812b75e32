"""One load on the running node: finds the node, sends everything, gives what became of it."""

import asyncio
from collections.abc import Callable, Sequence
from secrets import token_hex
from typing import Final

from rich.console import Console
from rich.progress import Progress

from ingest.command.bench.serve.beside import NoCosts, hardware_of
from ingest.command.bench.serve.by_http import ByHttp, ask, sample_ids
from ingest.command.bench.serve.by_redis import ByRedis
from ingest.command.bench.serve.drive import drive
from ingest.command.bench.serve.load import Prompts
from ingest.command.bench.serve.record import Record
from ingest.command.failure import Failure
from router.simulator.hardware import Hardware
from router.simulator.workload import Wish
from workers.settings import Settings
from workers.store import Store

NO_NODE: Final = "no node answers at {url}: start one with `make start`, or set LOCKSTEP_PORT"


def watched(
    config: Settings, wishes: Sequence[Wish], via: str, seed: int, patience_s: float
) -> list[Record]:
    """Every request's record; a bar on stderr."""
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(f"{via}, {len(wishes)} requests", total=len(wishes))
        return run(config, wishes, via, seed, patience_s, lambda n: bar.update(task, completed=n))


def described(config: Settings, context: int) -> Hardware:
    """The running node, as its pools describe it. Raises Failure."""
    try:
        return hardware_of(Store.of(config).loads(), context)
    except NoCosts as error:
        raise Failure(f"{error}: give it a little --warmup") from None


def context_of(config: Settings) -> int:
    """The model's context, as the running node says. Raises Failure."""
    host, port = config.host, config.port
    try:
        status, _ = ask(host, port, "GET", "/readyz")
        told, models = ask(host, port, "GET", "/v1/models") if status == 200 else (0, None)
    except OSError:
        raise Failure(NO_NODE.format(url=f"http://{host}:{port}")) from None
    if told in (401, 403):
        raise Failure("the node asks for a key with the scopes infer and jobs: LOCKSTEP_API_KEY")
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
