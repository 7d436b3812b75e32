"""The doctor, at a node that runs badly: each breakage is found and named, with what to do."""

import json
import os
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from redis import Redis

from ingest.command.doctor import app, programs, requests, store
from ingest.health.programs import LastExit, Program
from ingest.health.pulse import Pulse
from tests.ingest.command.test_doctor import ROOT, names
from tests.workers.queue.conftest import Node
from workers.settings import Settings
from workers.wire import GROUP, PoolLoad

LAST = LastExit(how="killed by SIGKILL", code=-9)


@pytest.fixture
def node(redis_url):
    return Node(redis_url)


def program(**fields):
    told = {"name": "cpu", "state": "running", "keeper": os.getpid(), "pid": 7}
    return Program(**(told | fields))


# --- the store ---


def test_a_server_that_keeps_everything_is_good(redis_url):
    assert names(store.examine(Settings(redis_url=redis_url))) == []


def test_a_store_that_does_not_answer(free_port):
    found = list(store.examine(Settings(redis_url=f"redis://127.0.0.1:{free_port()}/0")))
    assert names(found) == ["store-unreachable"] and "LOCKSTEP_REDIS_URL" in found[0].todo


@pytest.fixture
def locked_url(redis_url):
    """A user of the same server, whose password is `right`."""
    redis, port = Redis.from_url(redis_url), redis_url.rpartition(":")[2]
    redis.execute_command("ACL", "SETUSER", "keeper", "on", ">right", "~*", "+@all")
    yield lambda password: f"redis://keeper:{password}@127.0.0.1:{port}"
    redis.execute_command("ACL", "DELUSER", "keeper")


def test_a_wrong_password(locked_url):
    found = list(store.examine(Settings(redis_url=locked_url("wrong"))))
    assert names(found) == ["store-password"]
    assert "LOCKSTEP_REDIS_URL" in found[0].todo and "wrong@" not in found[0].what
    assert names(store.examine(Settings(redis_url=locked_url("right")))) == []


@pytest.mark.parametrize("said", ["NOAUTH Authentication required.", "NOPERM no permission"])
def test_a_store_that_wants_a_password(said):
    assert store.trouble(Exception(said)).name == "store-password"


@pytest.mark.parametrize(
    ("setting", "bad", "name"),
    [("maxmemory-policy", "allkeys-lru", "store-evicts"), ("appendonly", "no", "store-no-log")],
)
def test_a_server_that_may_forget(redis_url, setting, bad, name):
    redis = Redis.from_url(redis_url, decode_responses=True)
    good = redis.config_get(setting)[setting]
    redis.config_set(setting, bad)
    try:
        assert names(store.server(redis)) == [name]
    finally:
        redis.config_set(setting, good)


@pytest.mark.parametrize(
    ("told", "name"),
    [
        ({"aof_last_write_status": "err"}, "store-log-unwritten"),
        ({"used_memory": 99, "maxmemory": 100}, "store-full"),
    ],
)
def test_a_server_that_can_take_nothing_more(told, name):
    well = {"aof_enabled": 1, "aof_last_write_status": "ok", "maxmemory_policy": "noeviction"}
    assert names(store.keeping(well)) == []
    assert names(store.keeping(well | told)) == [name]


@pytest.mark.parametrize(
    ("ahead_s", "word"), [(1.0, "agree"), (90.0, "90 s ahead"), (-90.0, "90 s behind")]
)
def test_clocks_that_differ(ahead_s, word):
    found = store.clock(ahead_s)
    assert word in found.what and found.is_good == (word == "agree")
    assert found.name == ("ok" if found.is_good else "clock-skew")


# --- programs and pools ---


def test_a_restarted_program_is_well_but_its_end_is_told():
    found = programs.keeper(program(restarts=2, last_exit=LAST))
    assert found.is_good and "2 restarts" in found.what and "SIGKILL" in found.what


def test_a_program_that_waits_to_be_started_again():
    soon = int((time.time() + 20) * 1000)
    state = {"state": "waiting", "pid": None, "restarts": 9, "next_start_ms": soon}
    found = programs.keeper(program(last_exit=LAST, **state))
    assert found.name == "program-restarting" and "starts again in" in found.what


def test_a_line_of_the_procfile_without_a_keeper(tmp_path):
    found = list(programs.keepers(tmp_path, ROOT / "Procfile"))
    assert [finding.part for finding in found] == [
        *("store", "api", "router", "cpu", "gpu", "webhooks")
    ]
    assert set(names(found)) == {"program-unkept"}


def test_a_gpu_that_failed():
    load = PoolLoad(pool="gpu", worker="g", state="failed", note="it has fallen off the bus")
    found = programs.worker(load)
    assert found.name == "gpu-failed" and "off the bus" in found.what


def test_a_gpu_that_is_not_there_is_no_fault():
    assert programs.worker(PoolLoad(pool="gpu", worker="g", state="absent")).is_good


def test_a_pool_that_runs_and_does_not_report(monkeypatch):
    monkeypatch.setattr(Program, "is_kept", True)
    (found,) = programs.pool("cpu", Pulse({}, {}, [], 1), program())
    assert found.name == "pool-silent" and "kill -9 7" in found.todo
    assert names(programs.pool("cpu", Pulse({}, {}, [], 1), None)) == []


def test_no_router_and_no_pool(node, tmp_path):
    assert names(programs.pools(node.store, tmp_path)) == ["router-silent", "pool-none-ready"]


def test_a_door_that_does_not_answer(free_port):
    assert programs.door(Settings(port=free_port())).name == "door-silent"


def test_a_door_that_is_not_ready(free_port):
    class Door(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(503)
            self.end_headers()
            self.wfile.write(json.dumps({"problems": {"pools": "none runs"}}).encode())

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", free_port()), Door)
    thread = threading.Thread(target=server.handle_request)
    thread.start()
    found = programs.door(Settings(port=server.server_port))
    thread.join()
    server.server_close()
    assert found.name == "door-not-ready" and "pools none runs" in found.what


# --- requests ---


def test_a_node_without_trouble_has_no_finding(node):
    node.route("r1")
    node.store.claim("cpu", "w", 1)
    assert names(requests.examine(node.store)) == []


def test_a_request_whose_worker_is_gone_and_that_nobody_takes_up(node):
    node.route("r1")
    node.store.claim("cpu", "w", 1)
    node.expire_leases()
    (found,) = requests.stuck_leases(node.store)
    assert found.name == "requests-stuck" and "r1" in found.what


def test_a_message_that_a_router_took_and_forgot(node):
    stream = node.keys.requests("standard")
    entry_id = node.redis.xadd(stream, {"prompt": "Hello"})
    node.redis.xreadgroup(GROUP, "router-0", {stream: ">"})
    assert names(requests.stuck_messages(node.store)) == []
    node.redis.execute_command("XCLAIM", stream, GROUP, "router-0", 0, entry_id, "IDLE", 90_000)
    assert names(requests.stuck_messages(node.store)) == ["requests-stuck"]


@pytest.mark.parametrize("fields", [{"v": "2", "prompt": "Hello"}, {"m": b"\xc1"}])
def test_a_message_of_another_wire_version(node, fields):
    node.redis.xadd(node.keys.requests("standard"), {"v": "1", "prompt": "Hello"})
    assert names(requests.versions(node.store)) == []
    node.redis.xadd(node.keys.requests("standard"), fields)
    assert names(requests.versions(node.store)) == ["wire-version"]


def test_a_job_that_another_version_wrote(node):
    node.route("r1")
    node.redis.hset(node.keys.job("r1"), "request", b"\x81\xa1x\x01")
    (found,) = requests.versions(node.store)
    assert found.name == "wire-version" and "r1" in found.what


@pytest.mark.parametrize(
    ("letter", "expected"),
    [
        ({"kind": "webhook", "code": "gone", "reason": "410"}, ["webhooks-dead"]),
        ({"kind": "request", "code": "poison", "reason": "died"}, ["requests-dead"]),
        ({"kind": "request", "code": "bad_request", "reason": "its sender's"}, []),
    ],
)
def test_what_was_given_up(node, letter, expected):
    node.redis.xadd(node.keys.dead, letter)
    found = list(requests.dead_letters(node.store))
    assert names(found) == expected
    assert not expected or letter["reason"] in found[0].what


def test_dead_letters_of_last_week_are_no_news(node):
    week_ago = int((time.time() - 7 * 86_400) * 1000)
    node.redis.xadd(node.keys.dead, {"kind": "webhook"}, id=f"{week_ago}-0")
    assert names(requests.dead_letters(node.store)) == []


def test_of_a_store_that_is_away_nothing_more_is_asked(free_port):
    ports = {"port": free_port(), "redis_url": f"redis://127.0.0.1:{free_port()}/0"}
    assert names(app.running_node(Settings(**ports))) == ["store-unreachable", "door-silent"]
