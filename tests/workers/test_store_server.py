"""The embedded store, started for real: damaged logs, taken ports, two stores on one home."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from redis import ConnectionError, Redis

from workers import store_server, store_sync

ROOT = Path(__file__).parents[2]
WAIT_S = 30  # a hang, not a speed
LENGTH = 500


class Store:
    """The store of one LOCKSTEP_HOME; started and stopped as often as a test likes."""

    def __init__(self, home: Path, port: int) -> None:
        self.home, self.port = home, port
        self.folder = home / "store"
        self.server: subprocess.Popen[str] | None = None
        self.redis = Redis(port=port, decode_responses=True)

    def launch(self, **more: str) -> subprocess.Popen[str]:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("LOCKSTEP_")}
        environment |= {"LOCKSTEP_HOME": str(self.home), "LOCKSTEP_STORE_PORT": str(self.port)}
        return subprocess.Popen(
            [sys.executable, "-m", "workers.store_server"], cwd=ROOT, env=environment | more,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def start(self, **more: str) -> None:
        self.server = self.launch(**more)
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline and self.server.poll() is None:
            try:
                self.redis.ping()
                return
            except ConnectionError:  # also while it loads its log
                time.sleep(0.05)
        raise AssertionError(f"no store: {self.stop()}")

    def stop(self, number: int = signal.SIGTERM) -> str:
        """What it said."""
        if self.server is None:
            return ""
        self.server.send_signal(number)
        said, _ = self.server.communicate(timeout=WAIT_S)
        self.server = None
        return said

    def fill(self) -> None:
        for i in range(LENGTH):
            self.redis.xadd("s", {"i": i}, id=f"{i + 1}-0")

    def kept(self) -> list[int]:
        return [int(fields["i"]) for _, fields in self.redis.xrange("s")]

    def tail(self) -> Path:
        tail = store_server.tail_of_log(self.folder)
        assert tail is not None
        return tail

    def copies(self) -> list[Path]:
        return sorted(self.folder.glob("damaged-*"))


@pytest.fixture
def store(tmp_path, free_port):
    store = Store(tmp_path, free_port())
    yield store
    store.stop(signal.SIGKILL)


@pytest.fixture
def filled(store):
    """A store with LENGTH entries, stopped."""
    store.start()
    store.fill()
    store.stop()
    return store


def test_it_is_set_up_to_lose_nothing(store):
    store.start()
    config = store.redis.config_get()
    wanted = {"appendonly": "yes", "appendfsync": "no", "save": "", "bind": "127.0.0.1"}
    assert wanted.items() <= config.items()
    assert config["maxmemory-policy"] == "noeviction"


def test_fsync_always_is_a_setting(store):
    store.start(LOCKSTEP_STORE_FSYNC="always")
    assert store.redis.config_get("appendfsync") == {"appendfsync": "always"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_what_was_written_is_there_after_a_restart(store, number):
    store.start()
    store.fill()
    store.stop(number)
    store.start()
    assert store.kept() == list(range(LENGTH))
    assert store.copies() == []


SLOW_SYNC = """
#include <unistd.h>
int fdatasync(int fd) { (void)fd; sleep(2); return 0; }
int fsync(int fd) { return fdatasync(fd); }
"""


@pytest.fixture(scope="module")
def slow_disk(tmp_path_factory):
    """LD_PRELOAD of a disk that takes two seconds for a sync."""
    folder = tmp_path_factory.mktemp("slow")
    (folder / "slow.c").write_text(SLOW_SYNC)
    library = folder / "slow.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, folder / "slow.c"], check=True)
    return str(library)


def test_a_kill_loses_nothing_while_the_disk_is_slow(store, slow_disk):
    """With appendfsync everysec Valkey holds writes back while a sync is under way."""
    store.start(LD_PRELOAD=slow_disk)
    store.redis.set("a", 1)
    time.sleep(1.5)  # a sync has begun
    store.fill()
    store.stop(signal.SIGKILL)
    store.start()
    assert store.kept() == list(range(LENGTH))


def test_the_log_is_synced_while_it_grows(store):
    """What a power loss takes is what has not been synced."""
    store.start()
    store.fill()
    synced: dict[str, int] = {}
    store_sync.sync_grown(str(store.folder / "appendonlydir"), synced)
    assert synced == {store.tail().name: store.tail().stat().st_size}


def test_the_sync_ends_with_its_server(store):
    store.start()
    (sync,) = psutil.Process(store.server.pid).children()
    assert "workers.store_sync" in sync.cmdline()
    store.stop(signal.SIGKILL)
    psutil.wait_procs([sync], timeout=WAIT_S)
    assert not sync.is_running()


def test_a_sync_whose_server_is_gone_before_it_begins_ends(tmp_path):
    gone = subprocess.Popen(["true"])
    gone.wait()
    command = [sys.executable, "-m", "workers.store_sync", str(tmp_path), str(gone.pid)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=WAIT_S)


def test_zero_bytes_after_the_tail_are_cut_off(filled):
    """What a power loss leaves; Valkey itself refuses to start from it."""
    whole = filled.tail().read_bytes()
    filled.tail().write_bytes(whole + bytes(64))
    filled.start()
    assert filled.kept() == list(range(LENGTH))
    said = filled.stop()
    assert "damaged tail was cut off" in said and "bytes=64" in said
    (copy,) = filled.copies()
    assert (copy / filled.tail().name).read_bytes() == whole + bytes(64)


def test_without_the_repair_valkey_would_refuse(filled):
    filled.tail().write_bytes(filled.tail().read_bytes() + bytes(64))
    arguments = ["--dir", str(filled.folder), "--port", str(filled.port), "--appendonly", "yes"]
    refused = subprocess.run(
        [store_server.server_binary(), *arguments], capture_output=True, timeout=WAIT_S
    )
    assert refused.returncode == 1


@pytest.mark.parametrize("cut_bytes", [1, 7, 30])
def test_a_torn_tail_loses_the_torn_record_only(filled, cut_bytes):
    whole = filled.tail().read_bytes()
    filled.tail().write_bytes(whole[:-cut_bytes])
    filled.start()
    assert filled.kept() == list(range(LENGTH - 1))
    (copy,) = filled.copies()
    assert (copy / filled.tail().name).read_bytes() == whole[:-cut_bytes]


def test_a_hole_keeps_all_that_was_before_it(filled):
    whole = filled.tail().read_bytes()
    hole = whole.index(b"251-0")  # the id of entry 250
    filled.tail().write_bytes(whole[:hole] + bytes(64) + whole[hole + 64 :])
    filled.start()
    assert filled.kept() == list(range(250))
    (copy,) = filled.copies()
    assert len((copy / filled.tail().name).read_bytes()) == len(whole)


def test_half_a_transaction_counts_as_nothing(store):
    store.start()
    store.fill()
    store.redis.eval("redis.call('set', 'a', 1) redis.call('set', 'b', 1)", 0)
    store.stop()
    store.tail().write_bytes(store.tail().read_bytes()[:-7])
    store.start()
    assert store.redis.exists("a", "b") == 0
    assert store.kept() == list(range(LENGTH))


def test_it_goes_on_writing_after_a_repair(filled):
    filled.tail().write_bytes(filled.tail().read_bytes() + bytes(64))
    filled.start()
    filled.redis.xadd("s", {"i": LENGTH}, id=f"{LENGTH + 1}-0")
    filled.stop(signal.SIGKILL)
    filled.start()
    assert filled.kept() == list(range(LENGTH + 1))
    assert len(filled.copies()) == 1


def refusal(started: subprocess.Popen[str]) -> str:
    """The one line of a store that did not start."""
    said, _ = started.communicate(timeout=WAIT_S)
    assert started.returncode == store_server.BAD_CONFIG, said
    (line,) = said.splitlines()
    return line


def test_a_port_in_use_is_said_in_one_sentence(store):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", store.port))
        taken.listen()
        said = refusal(store.launch())
    assert f"port {store.port} is in use" in said and "LOCKSTEP_STORE_PORT" in said


def test_a_home_has_one_store(store, free_port):
    store.start()
    said = refusal(store.launch(LOCKSTEP_STORE_PORT=str(free_port())))
    assert "another store already runs" in said and "LOCKSTEP_HOME" in said


def test_with_a_server_of_ones_own_it_only_sleeps(store):
    url = "redis://user:secret@example.invalid:6379/0"
    store.server = store.launch(LOCKSTEP_REDIS_URL=url)
    line = store.server.stdout.readline()
    assert "nothing to run" in line and "example.invalid" in line
    assert "secret" not in line
    assert store.server.poll() is None
