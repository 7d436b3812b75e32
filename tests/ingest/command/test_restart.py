"""Pools are restarted one after the other; what they run goes on, and none of it fails."""

import json
import os
import signal
import subprocess
import sys
import time
from threading import Thread

import pytest

from ingest.command import restart as restart_module
from ingest.command.failure import Failure
from ingest.command.main import run
from ingest.command.restart import restart
from tests.workers.queue.conftest import HERE, Node, stop_all
from tests.workers.queue.fake_engine import expected_text
from workers.settings import Settings
from workers.wire import PoolLoad

ROOT = HERE.parents[2]
TOKENS = 150


@pytest.fixture
def node(redis_url, monkeypatch):
    monkeypatch.setattr(restart_module, "settings", lambda: Settings(redis_url=redis_url))
    return Node(redis_url)


@pytest.fixture
def keep(node, tmp_path):
    """Starts a pool with a fake engine behind its keeper."""
    keepers = []

    def start(pool):
        program = [sys.executable, str(HERE / "pool_process.py"), node.url, str(tmp_path), pool]
        command = [sys.executable, "-m", "workers.keeper", pool, *program, "5", "0.02", "8"]
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("LOCKSTEP_", "HONCHO_"))}
        kept |= {"LOCKSTEP_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
        keepers.append(subprocess.Popen(command, env=kept, cwd=tmp_path))

    yield start
    for keeper in keepers:
        keeper.send_signal(signal.SIGTERM)
    for keeper in keepers:
        keeper.wait(20)
    stop_all(keepers)


def ready(node):
    return {load.pool for load in node.store.loads() if load.state == "ready"}


def test_under_load_one_pool_is_always_there_and_no_request_fails(node, keep, capfd):
    for pool in ("gpu", "cpu"):
        keep(pool)
    node.until(lambda: ready(node) == {"gpu", "cpu"})
    asked = {f"{pool}{n}": pool for n in range(6) for pool in ("gpu", "cpu")}
    for request_id, pool in asked.items():
        node.route(request_id, pool=pool, max_tokens=TOKENS)
    node.until(lambda: all(node.redis.xlen(node.keys.tokens(i)) > 3 for i in asked))
    before = {load.pool: load.began_ms for load in node.store.loads()}
    restarting, seen = Thread(target=restart, args=(["gpu", "cpu"],)), []
    restarting.start()
    while restarting.is_alive():
        states = {load.pool: load.state for load in node.store.loads()}
        assert "ready" in states.values(), states
        seen += [pool for pool, state in states.items() if state == "stopping"]
        time.sleep(0.05)
    node.until_ended(*asked)
    for request_id in asked:
        node.check_ended(request_id)
        job = node.store.job(request_id)
        assert (job["status"], job["text"]) == ("finished", expected_text(request_id, TOKENS))
        assert job["attempts"] <= 1
    assert {load.pool: load.began_ms > before[load.pool] for load in node.store.loads()} == {
        "gpu": True,
        "cpu": True,
    }
    assert seen == sorted(seen, reverse=True), "gpu first, then cpu"
    assert capfd.readouterr().out.count("is ready again") == 2


def test_one_that_does_not_come_back_is_said_so(node, processes):
    processes()
    node.until(lambda: ready(node) == {"cpu"})
    with pytest.raises(Failure, match=r"cpu: .* was not ready again within 1 s"):
        restart(["cpu"], patience=1.0)


@pytest.fixture
def processes(node, tmp_path):
    from tests.workers.queue.conftest import start_pool

    started = []
    yield lambda: started.append(start_pool(node.url, tmp_path))
    stop_all(started)


def test_what_cannot_be_restarted_is_said_with_its_state(node):
    node.store.report(PoolLoad(pool="gpu", worker="g", state="absent", note="switched off"))
    with pytest.raises(Failure, match=r"gpu: none is ready: absent \(switched off\)"):
        restart(["gpu"])
    with pytest.raises(Failure, match="cpu: none is ready: none reports"):
        restart(["cpu"])
    with pytest.raises(Failure, match="there is no pool 'tpu': gpu or cpu"):
        restart(["tpu"])


def test_scripts_are_told_in_json(node, capfd, monkeypatch):
    load = PoolLoad(pool="cpu", worker="w", state="ready")
    node.store.report(load)
    monkeypatch.setattr(restart_module, "roll", lambda store, load, patience_s: 2.25)
    assert run(["restart", "cpu", "--json"]) == 0
    told = json.loads(capfd.readouterr().out)
    assert told == {"restarted": [{"pool": "cpu", "worker": "w", "took_s": 2.2}]}
