"""The store: whether it answers, lets us in, keeps what it is given, and tells the same time."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from redis import Redis
from redis.exceptions import AuthenticationError, RedisError, ResponseError

from ingest.command.doctor.finding import Finding, wrong
from workers.settings import Settings
from workers.store import Store

SKEW_S: Final = 2.0
NEARLY_FULL: Final = 0.95  # of maxmemory
AWAY: Final = ("store-unreachable", "store-password", "store-refuses")  # nothing more can be asked
FOLLOWED: Final = {"cluster": "who serves our slot", "sentinel": "as the Sentinels say"}
REFUSALS: Final = ("NOAUTH", "WRONGPASS", "NOPERM", "invalid username-password", "AUTH ")


@contextmanager
def opened(config: Settings) -> Iterator[Store]:
    """A connection of our own, closed at the end."""
    store = Store.of(config)
    try:
        yield store
    finally:
        store.redis.close()


def examine(config: Settings) -> Iterator[Finding]:
    """One that answers, or why it does not."""
    with opened(config) as connection:
        try:
            connection.redis.ping()
            yield from server(connection.redis)
            yield from replicas(connection)
        except (RedisError, OSError) as error:
            yield trouble(error)


def trouble(error: Exception) -> Finding:
    """What it means that the store does not do what it is asked."""
    if isinstance(error, AuthenticationError) or str(error).startswith(REFUSALS):
        todo = "put user and password into LOCKSTEP_REDIS_URL: redis://USER:PASSWORD@HOST:PORT/0"
        return wrong("store-password", "store", f"does not let us in: {error}", todo)
    if isinstance(error, ResponseError):
        return wrong("store-refuses", "store", f"refuses: {error}", "see the store's own log")
    todo = "read the store's lines in the node's output, or correct LOCKSTEP_REDIS_URL"
    return wrong("store-unreachable", "store", f"does not answer: {error}", todo)


def server(redis: "Redis") -> Iterator[Finding]:
    """Whether it can lose or forget what was accepted, and what it takes the time for."""
    before_s = time.time()
    seconds, micros = redis.time()
    yield clock(seconds + micros / 1e6 - (before_s + time.time()) / 2)
    yield from keeping(redis.info())


def clock(ahead_s: float) -> Finding:
    """ahead_s: of the store's clock; leases and deadlines are by that one."""
    if abs(ahead_s) <= SKEW_S:
        return Finding("clock", "the store's and ours agree")
    what = f"the store's is {abs(ahead_s):.0f} s {'ahead of' if ahead_s > 0 else 'behind'} ours"
    return wrong("clock-skew", "clock", what, "set both machines by NTP (timedatectl set-ntp true)")


def keeping(info: dict[str, Any]) -> Iterator[Finding]:
    """info: as INFO says it."""
    if info.get("aof_enabled") != 1:
        yield wrong("store-no-log", "store", "writes no log", "set appendonly yes on your Redis")
    elif info.get("aof_last_write_status") != "ok":
        what = "cannot write its log"
        yield wrong("store-log-unwritten", "store", what, "make room on the store's disk")
    else:
        yield Finding("store", "answers, its log is written")
    if info.get("maxmemory_policy") != "noeviction":
        what = f"forgets keys when memory is short ({info.get('maxmemory_policy')})"
        yield wrong("store-evicts", "store", what, "set maxmemory-policy noeviction on your Redis")
    used, most = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
    if most and used > NEARLY_FULL * most:
        what = f"its memory is full: {used >> 20} of {most >> 20} MiB"
        todo = "raise maxmemory, or keep results for less long (LOCKSTEP_RESULT_TTL_S)"
        yield wrong("store-full", "store", what, todo)


def replicas(store: Store) -> Iterator[Finding]:
    """Whether another server can take the place of one that may be left (docs/redis.md)."""
    url, master, must = store.clients.url, store.clients.master, store.replicas
    if master is None or (url.kind not in FOLLOWED and must == 0):
        return
    info: dict[str, Any] = store.redis.info("replication")
    (host, port), number = master.find()[0], int(info.get("connected_slaves", 0))
    whose = FOLLOWED.get(url.kind, "by its URL")
    yield Finding("store", f"{host}:{port}, {whose}; replicas: {number}, asked for: {must}")
    if number < max(must, 1):
        what = f"{must} of its {number} replicas must have a request: nothing is accepted"
        lonely = "has no replica: nobody takes its place"
        todo = "give it two replicas (docs/redis.md)"
        yield wrong("store-no-replica", "store", what if must else lonely, todo)
    if url.kind in FOLLOWED and "min_slaves_good_slaves" not in info:
        what = "takes writes that no replica has, even when it is cut off from all of them"
        todo = "set min-replicas-to-write 1 on all its servers (docs/redis.md)"
        yield wrong("store-writes-alone", "store", what, todo)


def log(folder: Path) -> Iterator[Finding]:
    """The embedded store's, while it does not run.   folder: LOCKSTEP_HOME/store"""
    from workers.store_server import CannotStart, check_log

    try:
        damage = check_log(folder)
    except (CannotStart, OSError) as error:
        yield wrong("store-log-unread", "store", str(error), "make build")
        return
    if damage is not None:
        what = f"{damage.lost_bytes} bytes at the end of its log are damaged"
        todo = "make start cuts them off and keeps a copy"
        yield wrong("store-log-damaged", "store", what, todo)
    else:
        yield Finding("store", "its log is whole")
