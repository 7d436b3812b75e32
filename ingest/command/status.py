"""`lockstep status`: of one request, or of the node: what waits, which pools run, how fast."""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Final

import msgspec
from rich.console import Console
from rich.table import Table
from typer import Argument, Option

from ingest.command.classes import classes_table
from ingest.command.failure import Failure
from ingest.command.nodes import troubles
from ingest.dashboard.nodes import node_objects
from ingest.fleet import SeenNode, kv_by_home, seen_nodes
from ingest.health.pulse import Pulse, take_pulse
from ingest.jobs.unread import known
from ingest.metrics.class_rows import Row, by_plan, class_rows
from workers.fleet.names import processor_of
from workers.promises import pressures
from workers.settings import settings
from workers.store import Store
from workers.wire import PoolLoad

FIELDS: Final = (  # of a job, as a person reads them; others after these
    "id", "status", "error", "code", "retry_after_s", "text", "finish_reason", "sla", "plan",
    "pool", "then_pool", "reason", "moves", "moved_ms", "predicted_ttft_ms", "ttft_ms", "tpot_ms",
    "queue_ms", "tenant", "model", "entry", "arrival_ms", "queued_ms", "started_ms", "ended_ms",
    "deadline_ms", "worker", "execution", "attempts", "prompt_tokens", "output_tokens", "digest",
)  # fmt: skip
NOT_FOR_PEOPLE: Final = ("request", "rank", "session_wait_ms")  # how places in a queue are counted
TIERS: Final = (("RAM", "tokens_ram"), ("page cache", "tokens_cache"), ("disk", "tokens_disk"))


def status(
    request_id: Annotated[
        str | None, Argument(metavar="[ID]", help="Absent: the node.", show_default=False)
    ] = None,
    as_json: Annotated[bool, Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print what is known of a request, or how the node is."""
    store = Store.of(settings())
    if request_id is None:
        pulse, seen = take_pulse(store), seen_nodes(store)
        show_node(pulse, class_rows(pulse, store.table, pressures(store)), seen, as_json)
    else:
        show_job(store, request_id, as_json)


def show_job(store: Store, request_id: str, as_json: bool) -> None:
    job = known(store, request_id)
    if job is None:
        raise Failure(f"nothing is known of a request {request_id!r}")
    told = {name: value for name, value in job.items() if name != "request"}
    if webhook := store.webhook(request_id):
        told["webhook"] = {name: value for name, value in webhook.items() if name != "body"}
    if as_json:
        print(json.dumps(told, ensure_ascii=False))
        return
    table = Table(box=None, show_header=False, pad_edge=False)
    for name in sorted(told, key=place):
        if name not in NOT_FOR_PEOPLE and told[name] not in ({}, ""):
            table.add_row(name, readable(name, told[name]))
    Console(soft_wrap=True).print(table)


def place(name: str) -> int:
    """Where a field stands in what a person reads; Redis gives them in no order."""
    return FIELDS.index(name) if name in FIELDS else len(FIELDS)


def readable(name: str, value: Any) -> str:
    """A time of day for points in time, JSON for maps, else the value itself."""
    if name.endswith("_ms") and isinstance(value, int):
        return f"{value}  ({datetime.fromtimestamp(value / 1000):%Y-%m-%d %H:%M:%S})"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else str(value)


def pulse_object(pulse: Pulse, classes: list[Row], seen: Sequence[SeenNode]) -> dict[str, Any]:
    ends: dict[str, dict[str, int]] = {}
    for (sla, outcome), count in pulse.ends.items():
        ends.setdefault(sla, {})[outcome] = count
    return {
        "classes": classes,
        "streams": pulse.streams,
        "queues": pulse.queues,
        "ended": ends,
        "placements": by_plan(pulse.placements),
        "refusals": pulse.refusals,
        "num_routers": pulse.num_routers,
        "loads": msgspec.to_builtins(pulse.loads),
        "nodes": node_objects(seen),
    }


def show_node(pulse: Pulse, classes: list[Row], seen: Sequence[SeenNode], as_json: bool) -> None:
    if as_json:
        print(json.dumps(pulse_object(pulse, classes, seen)))
        return
    console = Console()
    console.print(classes_table(classes))
    console.print()
    console.print(pools_table(pulse))
    for load in pulse.loads:
        if load.note:
            console.print(f"{processor_of(load.pool)}: {load.note}")
    console.print(sessions_line(pulse.loads))
    if not pulse.loads:
        console.print("no pool reports")
    if pulse.num_routers == 0:
        console.print("no router reports")
    if len(seen) > 1:
        console.print(f"nodes: {', '.join(f'{node.name} {node.state}' for node in seen)}")
    for line in troubles(node_objects(seen)):
        console.print(line)


def pools_table(pulse: Pulse) -> Table:
    """A line a pool; why one is not ready is said below."""
    heads = ("pool", "worker", "state", "queued", "running", "free blocks", "tok/s")
    table = Table(*heads, box=None, pad_edge=False)
    table.columns[1].no_wrap = True  # a name, to be copied
    table.columns[1].min_width = max((len(load.worker) for load in pulse.loads), default=0)
    for load in pulse.loads:
        queued = str(pulse.queues.get(load.pool, 0))
        running = f"{load.running}/{load.capacity}"
        blocks = f"{load.free_blocks}/{load.total_blocks}"
        speed = f"{load.tokens_per_s:.1f}"
        table.add_row(
            processor_of(load.pool), load.worker, load.state, queued, running, blocks, speed
        )
    return table


def sessions_line(loads: Sequence[PoolLoad]) -> str:
    """Sessions in files, what they take, and where the beginnings of prompts were found."""
    told = [load for load in loads if "sessions" in load.kv]
    homes = kv_by_home(told)
    sessions, used, quota = (total(homes, name) for name in ("sessions", "bytes", "quota_bytes"))
    pools = [load.kv for load in told]
    hits, misses = total(pools, "hits"), total(pools, "misses")
    found = ", ".join(f"{where} {total(pools, name):,.0f}" for where, name in TIERS)
    limit = f" of {quota / 2**20:,.0f}" if quota else ""
    return (
        f"sessions: {sessions:,.0f}, {used / 2**20:,.1f}{limit} MiB; "
        f"{hits:,.0f} of {hits + misses:,.0f} prompts begin with what is kept (tokens: {found})"
    )


def total(kvs: Iterable[Mapping[str, float]], name: str) -> float:
    return sum(kv.get(name, 0.0) for kv in kvs)
