"""Ready means: takes requests and gets on with them. Metrics tell of both."""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ingest.health.pulse import STALL_S, Pulse, StallWatch
from ingest.health.routes import pools_of
from workers.cost import CostModel
from workers.wire import PoolLoad

HELLO = [{"role": "user", "content": "Hello"}]


def pulse(progress=0, running=0, streams=0, queued=0):
    load = PoolLoad(pool="cpu", worker="w", state="ready", running=running, progress=progress)
    classes = {"realtime": 0, "standard": streams, "batch": 0}
    return Pulse(classes, {"gpu": 0, "cpu": queued}, [load], 1)


def stalled_after(*looks):
    """What is stalled at the last of these looks, which are 10 s apart."""
    watch = StallWatch()
    for number, look in enumerate(looks):
        stalled = watch.stalled(look.vitals(), 10.0 * number)
    return stalled


def test_an_idle_node_is_not_stalled():
    assert stalled_after(*[pulse(progress=5)] * 9) == []


def test_work_that_does_not_move_is_stalled_after_a_while():
    assert stalled_after(*[pulse(running=1)] * 3) == []
    assert stalled_after(*[pulse(running=1)] * 4) == ["cpu"]
    assert stalled_after(*[pulse(queued=1)] * 4) == ["cpu"]
    assert stalled_after(*[pulse(streams=1)] * 4) == ["router"]
    assert STALL_S == 30.0


def test_work_that_moves_is_not_stalled():
    assert stalled_after(*[pulse(running=1, progress=number) for number in range(9)]) == []


def test_time_spent_idle_does_not_count():
    assert stalled_after(*[pulse()] * 9, *[pulse(running=1)] * 3) == []


def test_a_node_with_router_and_pool_is_ready(door, node):
    assert door.http.get("/readyz").status_code == 200
    assert door.http.get("/healthz").status_code == 200


def test_a_node_without_router_or_pool_says_what_is_missing(door):
    response = door.http.get("/readyz")
    assert response.status_code == 503
    assert {"router", "pools"} == response.json()["problems"].keys()
    assert response.json()["error"]["code"] == "not_ready"
    assert response.headers["retry-after"]


def test_a_pool_that_loads_is_not_ready(door, node):
    node.report(state="loading")
    assert door.http.get("/readyz").json()["problems"] == {"pools": "cpu loading"}


def test_metrics_tell_of_requests_times_queues_and_pools(door, node):
    told = [*[0.0] * 3, 2.0, 1.0, *[0.0] * 12, 0.07]  # two of 10 to 25 ms, one of 25 to 50
    told = {"ttft standard": told, "step": [3.0, *[0.0] * 15, 0.002]}
    cost = CostModel(fixed_ms=9, error=0.25)
    node.report(running=3, capacity=16, free_blocks=60, cost=cost, histograms=told)
    door.openai.chat.completions.create(model="tiny", messages=HELLO)
    door.http.post("/v1/chat/completions", json={})
    door.http.post("/v1/chat/completions", json={"messages": HELLO, "sla": "urgent"})
    page = door.http.get("/metrics").text
    for line in (
        'lockstep_requests_accepted_total{door="chat",sla="standard"} 1.0',
        'lockstep_requests_ended_total{outcome="finished",sla="standard"} 1.0',
        'lockstep_requests_refused_total{code="bad_request"} 1.0',
        "lockstep_time_to_first_token_seconds_bucket{"
        'le="0.01",pool="cpu",sla="standard",worker="stub"} 0.0',
        "lockstep_time_to_first_token_seconds_bucket{"
        'le="0.05",pool="cpu",sla="standard",worker="stub"} 3.0',
        'lockstep_time_to_first_token_seconds_count{pool="cpu",sla="standard",worker="stub"} 3.0',
        'lockstep_step_time_seconds_sum{pool="cpu",worker="stub"} 0.002',
        'lockstep_num_requests_waiting{queue="standard"} 0.0',
        'lockstep_num_requests_running{pool="cpu",worker="stub"} 3.0',
        'lockstep_kv_usage_ratio{pool="cpu",tier="ram",worker="stub"} 0.0625',
        'lockstep_placements_total{plan="cpu",why="unplanned"} 1.0',
        'lockstep_pool_ready{pool="cpu",worker="stub"} 1.0',
        'lockstep_cost_error{pool="cpu",worker="stub"} 0.25',
    ):
        assert line in page, line


def test_ends_count_whichever_way_a_request_came(door, node, wait_until):
    """A job's end is seen by no client of this process, nor is a refusal by the router."""
    door.http.post("/v1/jobs", json={"prompt": "x", "id": "job", "sla": "batch"})
    door.http.post("/v1/jobs", json={"prompt": "x", "id": "gone", "sla": "realtime"})
    wait_until(lambda: door.desk.store.job("gone")["status"] == "finished")
    page = door.http.get("/metrics").text
    assert 'lockstep_requests_ended_total{outcome="finished",sla="batch"} 1.0' in page
    assert 'lockstep_requests_ended_total{outcome="finished",sla="realtime"} 1.0' in page


def test_a_pool_that_is_gone_is_gone_from_the_metrics(door, node):
    assert 'worker="stub"' in door.http.get("/metrics").text
    door.desk.store.redis.delete(door.desk.keys.pool("cpu", "stub"))
    assert 'worker="stub"' not in door.http.get("/metrics").text


@pytest.fixture
def run(tiny_home):
    """The folder in which keepers say how their programs are."""
    folder = tiny_home / "run"
    folder.mkdir()
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def keeper():
    """A process that looks like a keeper."""
    command = [sys.executable, "-c", "import time; time.sleep(600)", "workers.keeper"]
    process = subprocess.Popen(command)
    yield process
    process.kill()
    process.wait()


def test_restarts_and_backoff_are_told(door, node, run, keeper, wait_until):
    last = {"how": "killed by SIGKILL", "code": -9, "lived_s": 0.1, "at_ms": 1}
    state = {"name": "cpu", "state": "waiting", "keeper": keeper.pid, "restarts": 3}
    state |= {"next_start_ms": int(time.time() * 1000) + 60_000, "last_exit": last}
    (run / "cpu.json").write_text(json.dumps(state))
    (run / "gone.json").write_text(json.dumps({**state, "name": "gone", "keeper": 2**22 + 1}))
    cmdline = Path(f"/proc/{keeper.pid}/cmdline")
    wait_until(lambda: b"workers.keeper" in cmdline.read_bytes())
    programs = door.http.get("/readyz").json()["programs"]
    assert programs.keys() == {"cpu"}
    assert 50 < programs["cpu"].pop("next_start_in_s") <= 60
    assert programs["cpu"] == {"state": "waiting", "restarts": 3, "last_exit": "killed by SIGKILL"}
    page = door.http.get("/metrics").text
    for line in (
        'lockstep_program_up{program="cpu"} 0.0',
        'lockstep_program_restarts_total{program="cpu"} 3.0',
        'lockstep_program_last_exit_code{program="cpu"} -9.0',
        'lockstep_program_next_start_timestamp_seconds{program="cpu"} 1.',
    ):
        assert line in page, line


def test_a_ready_node_says_how_each_pool_is_and_why():
    loads = [
        PoolLoad(pool="gpu", worker="a", state="failed", note="it has fallen off the bus"),
        PoolLoad(pool="cpu", worker="b", state="ready"),
        PoolLoad(pool="cpu", worker="c", state="loading"),
    ]
    expected = {"gpu": "failed: it has fallen off the bus", "cpu": "ready"}
    assert pools_of(Pulse({}, {}, loads, 1)) == expected
