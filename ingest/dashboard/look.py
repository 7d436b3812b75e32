"""One look at the node as a person wants it: what the dashboard and `lockstep top` show.

Twelve round trips, however many nodes there are; nothing of a request's text or messages is in it.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from ingest.dashboard.nodes import in_order, node_objects
from ingest.fleet import kv_by_home, queues_of, seen_nodes
from ingest.health.programs import kept_programs
from ingest.health.pulse import Pulse, take_pulse
from ingest.metrics.class_rows import by_plan, class_rows
from ingest.shapes import Json
from workers.clock import now_ms
from workers.fleet.names import node_of, processor_of
from workers.job_list import FIELDS, job_of
from workers.promises import pressures
from workers.store import Store
from workers.wire import PoolLoad, full_id, split_id

SHOWN: Final = 10  # jobs of each list
FAILURES: Final = 8
LEFT_OUT: Final = ("histograms", "kv", "output_tokens", "prefill_by_class")
KV_SHOWN: Final = (
    *("sessions", "bytes", "quota_bytes", "free_bytes", "hits", "misses", "seconds_saved"),
    *("tokens_ram", "tokens_cache", "tokens_disk", "cached_blocks", "state_checkpoints"),
)


def look(store: Store, home: Path, *, fleet: bool = False) -> Json:
    """The node now. Raises redis' errors.

    fleet       what runs anywhere, else on this node

    at_ms       Unix time
    node        its name; "": it is alone. nodes: all of the fleet (node_objects)
    classes     see class_rows; pools: its own, see pool_object; tiers: see tiers_of
    running, ended, failed   jobs, newest first (job_object)
    placements  counts by plan and reason; refusals: by code; ended_counts: by class and status
    programs    by name: state, restarts, last_exit
    """
    pulse, seen = take_pulse(store), seen_nodes(store)
    pools = tuple(queues_of(seen)) if fleet else store.keys.own_pools
    return {
        "at_ms": now_ms(),
        "node": store.keys.node,
        "nodes": node_objects(seen),
        "model": next((load.model for load in pulse.loads if load.model), ""),
        "routers": pulse.num_routers,
        "for_session": pulse.for_session,
        "classes": class_rows(pulse, store.table, pressures(store)),
        "pools": [pool_object(load, pulse.queues) for load in in_order(pulse.loads)],
        "tiers": tiers_of(pulse),
        "placements": by_plan(pulse.placements),
        "refusals": dict(pulse.refusals),
        **jobs_of(store, pools),
        "programs": {program.name: program.told() for program in kept_programs(home)},
    }


def pool_object(load: PoolLoad, queues: Mapping[str, int]) -> Json:
    """What a pool says of itself; queued: jobs in its queue; processor, node: of its name."""
    told = msgspec.to_builtins(load)
    shown = {name: value for name, value in told.items() if name not in LEFT_OUT}
    shown |= {"processor": processor_of(load.pool), "node": node_of(load.pool)}
    kv = {name: load.kv[name] for name in KV_SHOWN if name in load.kv}
    return {**shown, "kv": kv, "queued": queues.get(load.pool, 0)}


def tiers_of(pulse: Pulse) -> list[Json]:
    """Where conversations are: in a pool's memory while they run, on disk while they rest.

    sessions  running there, or kept there; used: share of the tier, None: without a limit
    """
    tiers: list[Json] = []
    for load in in_order(pulse.loads):
        if load.total_blocks:
            used = 1 - load.free_blocks / load.total_blocks
            pool = processor_of(load.pool)
            tier = "VRAM" if pool == "gpu" else "RAM"
            row = {"tier": tier, "pool": pool, "sessions": load.running, "used": used}
            tiers.append({**row, "found_tokens": load.kv.get("tokens_ram", 0.0)})
    for kv in kv_by_home(pulse.loads):
        quota = kv.get("quota_bytes", 0.0)
        found = sum(
            load.kv.get("tokens_disk", 0.0) + load.kv.get("tokens_cache", 0.0)
            for load in pulse.loads
        )
        row = {"tier": "NVMe", "pool": "", "sessions": int(kv.get("sessions", 0))}
        row |= {"used": kv.get("bytes", 0.0) / quota if quota else None}
        tiers.append({**row, "bytes": kv.get("bytes", 0.0), "found_tokens": found})
    return tiers


def jobs_of(store: Store, pools: Iterable[str]) -> Json:
    """What runs in these pools, what ended last, what failed last."""
    keys = store.keys
    seconds = int(time.time()) + store.result_ttl_s + 1  # later: held for a webhook
    with store.redis.pipeline(transaction=False) as pipeline:
        for pool in pools:
            pipeline.zrange(keys.wip(pool), 0, SHOWN - 1)
        pipeline.zrevrangebyscore(keys.jobs, seconds, "-inf", start=0, num=SHOWN)
        pipeline.lrange(keys.failures, 0, FAILURES - 1)
        *leased, ended, failed = pipeline.execute()
    running = [member.rpartition(b":")[0] for members in leased for member in members]
    lists = {"running": running, "ended": ended, "failed": failed}
    names = {name: [raw.decode() for raw in found] for name, found in lists.items()}
    known = read(store, sorted({one for found in names.values() for one in found}))
    told = {name: [known[one] for one in found if one in known] for name, found in names.items()}
    told["running"] = sorted(told["running"], key=lambda job: -job.get("started_ms", 0))[:SHOWN]
    told["ended"].sort(key=lambda job: -job.get("ended_ms", 0))  # the list knows seconds
    return told


def read(store: Store, request_ids: Sequence[str]) -> dict[str, Json]:
    """Jobs by full id, with the tokens that they have so far."""
    with store.redis.pipeline(transaction=False) as pipeline:
        for request_id in request_ids:
            pipeline.hmget(store.keys.job(request_id), FIELDS)
            pipeline.xlen(store.keys.tokens(request_id))
        rows = pipeline.execute(raise_on_error=False)
    found = {}
    for request_id, values, length in zip(request_ids, rows[::2], rows[1::2], strict=True):
        job = None if isinstance(values, Exception) else job_of(request_id, values)
        if job is not None:
            tenant, own_id = split_id(request_id)
            told = {"full_id": full_id(tenant, own_id), "tenant": tenant}
            so_far = length if isinstance(length, int) else 0
            found[request_id] = {**job, **told, "tokens": job.get("output_tokens", so_far)}
    return found
