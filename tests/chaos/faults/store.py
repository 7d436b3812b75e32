"""Faults of Redis: its log torn or cut, its memory full, its clients cut off, its keys emptied."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress

from redis import Redis
from redis.exceptions import RedisError

from tests.chaos.log_cut import cut
from tests.chaos.node import kill
from tests.chaos.storm import Storm
from tests.node.running_node import wait_for
from workers.store_server import tail_of_log

CUT_BYTES = 20_000  # at most: some hundred writes


def while_store_is_dead(storm: Storm, action: Callable[[], None]) -> None:
    """Kill the store, do something to its files, and have its keeper start it again."""
    keeper = storm.node.keeper("store")
    keeper.suspend()
    try:
        process = storm.node.running("store")
        if kill(process):
            assert process is not None
            wait_for(lambda: process.status() == "zombie", "the store is dead")
            action()
    finally:
        keeper.resume()


def torn_log(storm: Storm) -> None:
    """Zero bytes at the log's end, as after a power loss: Valkey itself would refuse to start."""

    def tear() -> None:
        path = tail_of_log(storm.node.home / "store")
        assert path is not None
        with path.open("ab") as file:
            file.write(storm.chance.choice([bytes(64), bytes(4096), b"*3\r\n$3\r\nSET"]))

    while_store_is_dead(storm, tear)


def cut_log(storm: Storm) -> None:
    """The log lost its tail, and all others live on: they know what the store has forgotten."""

    def shorten() -> None:
        take(storm)

    while_store_is_dead(storm, shorten)


def power_cut(storm: Storm) -> None:
    """All processes die at once, and the log has lost its tail."""
    node = storm.node
    for process in node.processes():
        kill(process)
    wait_for(lambda: not node.left_over(), "all are dead")
    take(storm)
    node.again()


def take(storm: Storm) -> None:
    num_bytes = storm.chance.randrange(1, CUT_BYTES)
    gone = cut(storm.node.home / "store", num_bytes, list(storm.record.asked))
    storm.is_cut = True
    storm.cut_ids |= gone
    storm.note(f"{num_bytes} bytes, {len(gone)} requests: {' '.join(sorted(gone))}")


def full_memory(storm: Storm) -> None:
    """Nothing more goes in for a while."""
    redis = storm.node.store.redis
    used = int(redis.info("memory")["used_memory"])
    redis.config_set("maxmemory", used + storm.chance.choice([0, 20_000]))
    storm.sleep(1, 3)
    insist_on(lambda: redis.config_set("maxmemory", 0))


def flushed_scripts(storm: Storm) -> None:
    storm.node.store.redis.script_flush()


def cut_clients(storm: Storm) -> None:
    """All connections are closed by the server, again and again."""
    for _ in range(storm.chance.randrange(1, 6)):
        storm.node.store.redis.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        storm.node.store.redis.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        storm.sleep(0, 0.5)


def rewritten_log(storm: Storm) -> None:
    """The log is made anew meanwhile, and the store killed in the middle of it."""
    storm.node.store.redis.bgrewriteaof()
    if storm.chance.random() < 0.5:
        storm.sleep(0, 0.2)
        kill(storm.node.running("store"))


def emptied_queue(storm: Storm) -> None:
    """`rq empty`: the ids are gone from a pool's queue, their records are not."""
    keys = storm.node.store.keys
    name = storm.chance.choice(["cpu", "gpu", "webhooks"])
    lost = storm.node.store.redis.llen(keys.queue(name))
    storm.note(f"{name}: {lost}")
    storm.node.store.redis.delete(keys.queue(name))


def suspended_workers(storm: Storm) -> None:
    """`rq suspend`, and `rq resume` somewhat later."""
    redis, key = storm.node.store.redis, storm.node.store.keys.rq_suspended
    redis.set(key, 1)
    storm.sleep(1, 3)
    insist_on(lambda: redis.delete(key))


def busy_store(storm: Storm) -> None:
    """Somebody's script does not end: all others wait, and after five seconds hear BUSY."""
    thread = threading.Thread(target=run_for_ever, args=(storm.node.store.blocking(60.0),))
    thread.start()
    storm.sleep(1, 8)
    insist_on(storm.node.store.redis.script_kill)
    thread.join()


def run_for_ever(redis: Redis) -> None:
    with suppress(RedisError):  # it is killed
        redis.eval("while true do end", 0)


def insist_on(action: Callable[[], object]) -> None:
    end = time.monotonic() + 30
    while time.monotonic() < end:
        try:
            action()
            return
        except RedisError as error:
            if str(error).startswith("NOTBUSY"):
                return
            time.sleep(0.1)
    raise AssertionError("the store does not answer")
