"""A node of the fleet in one object: for `lockstep nodes`, `lockstep top` and the dashboard."""

from collections.abc import Mapping, Sequence
from typing import Final

from ingest.fleet import SeenNode, shares
from ingest.shapes import Json
from workers.fleet.names import PROCESSORS, node_of, processor_of
from workers.wire import PoolLoad

SUMMED: Final = ("running", "capacity", "tokens_per_s", "free_blocks", "total_blocks")  # over pools


def node_objects(seen: Sequence[SeenNode]) -> list[Json]:
    """Each node, with its share of the fleet's speed."""
    share = shares(seen)
    return [{**node_object(node), "share": round(share[node.name], 3)} for node in seen]


def node_object(node: SeenNode) -> Json:
    """What it says of itself, its pools, and their sums.

    state     see ingest/fleet.py; trouble: why it does not take part, "": it does
    silent_s  since it was heard last
    clock_ms  by how much its clock is ahead of the store's
    speed     requests of 256 and 256 tokens a second, as far as its pools predict
    """
    report, pools = node.report, [pool_line(load, node.queues) for load in in_order(node.loads)]
    return {
        "name": node.name,
        "state": node.state,
        "trouble": node.trouble,
        "silent_s": round(node.silent_s, 1),
        "refused": report.refused,
        "host": report.host,
        "since_ms": report.since_ms,
        "version": report.version,
        "model": report.model or next((load.model for load in node.loads if load.model), ""),
        "weights": report.weights,
        "arithmetic": report.arithmetic,
        "clock_ms": report.clock_ms,
        "speed": round(report.speed, 3),
        "queued": sum(node.queues.values()),
        **{name: sum(pool[name] for pool in pools) for name in SUMMED},
        "pools": pools,
    }


def pool_line(load: PoolLoad, queues: Mapping[str, int]) -> Json:
    """What one line says of a pool."""
    return {
        "pool": load.pool,
        "processor": processor_of(load.pool),
        "node": node_of(load.pool),
        "worker": load.worker,
        "state": load.state,
        "note": load.note,
        "queued": queues.get(load.pool, 0),
        **{name: getattr(load, name) for name in (*SUMMED, "step_ms", "batch")},
    }


def in_order(loads: Sequence[PoolLoad]) -> list[PoolLoad]:
    """As placement prefers them; processors that only a later version knows come last."""
    return sorted(loads, key=lambda load: (place_of(processor_of(load.pool)), load.worker))


def place_of(processor: str) -> int:
    return PROCESSORS.index(processor) if processor in PROCESSORS else len(PROCESSORS)
