"""What must not be left when everything has ended: entries, leases, memory, files, descriptors."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing

from redis.exceptions import ResponseError

from kv_tier.dump import examine
from tests.chaos.storm import Storm
from workers.wire import GROUP, PoolLoad

MORE_DESCRIPTORS, MORE_MIB = 24, 48  # than at the start
QUEUES = ("cpu", "gpu", "webhooks")


def left(storm: Storm) -> Iterator[str]:
    """What has no business there when everything has ended."""
    redis, keys = storm.node.store.redis, storm.node.store.keys
    for sla in keys.classes:
        if waiting := redis.xlen(keys.requests(sla)):
            yield f"left: {waiting} in the stream of {sla}"
        try:
            if pending := redis.xpending(keys.requests(sla), GROUP)["pending"]:
                yield f"left: {pending} pending of {sla}"
        except ResponseError as error:
            yield f"left: the group of {sla}: {error}"
    for queue in QUEUES:
        if queued := redis.lrange(keys.queue(queue), 0, 3):
            yield f"left: queued in {queue}: {queued}"
        if leased := redis.zrange(keys.wip(queue), 0, 3):
            yield f"left: leased in {queue}: {leased}"
    for key in (keys.active, keys.waiting, keys.deadlines, keys.webhooks_due):
        if found := redis.zrange(key, 0, 3):
            yield f"left: {key}: {found}"
    yield from left_keys(storm)
    yield from left_in_pools(storm.node.store.loads())


def left_keys(storm: Storm) -> Iterator[str]:
    redis, keys = storm.node.store.redis, storm.node.store.keys
    for raw in redis.scan_iter(f"{keys.prefix}:*", count=1000):
        key = raw.decode()
        if redis.ttl(key) == -1:
            yield f"left: {key} has no expiry"
        if "rq:executions:" in key or (key.endswith(":executions") and ":worker:" in key):
            yield f"left: {key}"
        if ":session:" in key and key.endswith(":waiting"):
            yield f"left: {key}: {redis.lrange(key, 0, 3)}"
        elif ":session:" in key and (holder := redis.hget(key, "holder")):
            yield f"left: {key} is held by {holder.decode()}"


def left_in_pools(loads: list[PoolLoad]) -> Iterator[str]:
    if sorted(load.pool for load in loads) != ["cpu", "gpu"]:
        yield f"left: pools are {[load.worker for load in loads]}"
    for load in loads:
        if load.running or load.waiting or load.decoding or load.prefill_tokens:
            yield f"left: {load.pool} has {load.running} running, {load.waiting} waiting"
        if load.free_blocks != load.total_blocks:
            yield f"left: {load.pool} has {load.free_blocks} of {load.total_blocks} blocks free"


def files(storm: Storm) -> Iterator[str]:
    home = storm.node.home
    # of kv/ who was killed leaves some behind; whoever finds an old one takes it away (FORMAT.md)
    unfinished = [path for path in home.rglob("*.tmp") if path.exists()]
    if unfinished:
        yield f"files: unfinished: {[str(p.relative_to(home)) for p in unfinished[:4]]}"
    is_ours = any(name in ("flipped_bits", "cut_files") for _, name, _ in storm.outcome.faults)
    for path in sorted((home / "kv").glob("**/*")):
        if path.is_file() and path.stat().st_mode & 0o077:
            yield f"files: {path.relative_to(home)} can be read by others"
        if path.suffix in (".block", ".tail", ".state", ".manifest") and not is_ours:
            damage = examine(path)["damage"]
            if damage and path.exists():
                yield f"files: {path.relative_to(home)}: {damage}"
    if reserved := reserved_bytes(storm):
        yield f"files: {reserved} bytes are reserved, and nobody writes"


def reserved_bytes(storm: Storm) -> int:
    """By processes that live; those of others are released when room is next wanted."""
    ledger = storm.node.home / "kv" / "ledger.sqlite"
    if not ledger.exists():
        return 0
    living = [process.pid for _, process in storm.node.all_running()]
    marks = ", ".join("?" * len(living))
    with closing(sqlite3.connect(f"file:{ledger}?mode=ro", uri=True)) as connection:
        query = f"SELECT coalesce(sum(bytes), 0) FROM reservations WHERE pid IN ({marks})"
        return int(connection.execute(query, living).fetchone()[0])


def heavier(storm: Storm) -> Iterator[str]:
    for name, (descriptors, mib) in storm.node.burdens().items():
        before, mib_before = storm.node.baseline.get(name, (descriptors, mib))
        if descriptors > before + MORE_DESCRIPTORS:
            yield f"burden: {name} has {descriptors} descriptors, {before} at the start"
        if mib > mib_before + MORE_MIB:
            yield f"burden: {name} takes {mib} MiB, {mib_before} at the start"
