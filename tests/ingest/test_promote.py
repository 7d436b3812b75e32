"""A request is promoted by HTTP or by the command; whoever follows its stream notices nothing."""

import json

import pytest

from tests.ingest.stub_node import Play, StubNode

PROMPT = {"prompt": "The capital of France is"}


def create(door, request_id="r", sla="batch"):
    door.http.post("/v1/jobs", json={**PROMPT, "id": request_id, "sla": sla})


def promote(door, request_id="r", **body):
    return door.http.post(f"/v1/jobs/{request_id}/promote", json=body)


def test_a_job_that_waits_changes_its_stream(door):
    create(door)
    response = promote(door, sla="realtime")
    expected = {"id": "r", "object": "job", "result": "promoted", "sla": "realtime", "was": "batch"}
    assert (response.status_code, response.json()) == (200, expected)
    store = door.desk.store
    assert [store.redis.xlen(store.keys.requests(sla)) for sla in ("realtime", "batch")] == [1, 0]
    assert promote(door, sla="batch").json()["result"] == "demoted"
    assert promote(door, sla="batch").json()["result"] == "same"
    assert door.http.get("/v1/jobs/r").json()["sla"] == "batch"


def test_a_promoted_job_runs_as_what_it_is_now(door, text, wait_until):
    create(door)
    assert promote(door, sla="realtime").json()["result"] == "promoted"
    with StubNode(door.desk.store, text) as node:
        wait_until(lambda: door.http.get("/v1/jobs/r").json()["status"] == "finished")
    job = door.http.get("/v1/jobs/r").json()
    assert (job["sla"], job["text"]) == ("realtime", " Paris, of course.")
    assert [request.sla for request in node.requests] == ["realtime"]


def test_a_stream_goes_on_and_its_end_tells_the_class(door, node):
    node.play = Play(pause_after=2)
    create(door)
    with door.http.stream("GET", "/v1/jobs/r/events") as response:
        lines = response.iter_lines()
        while not next(lines).startswith("event: token"):
            pass
        assert promote(door, sla="realtime").json()["result"] == "promoted"
        node.go.set()
        data = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
    assert "".join(event["text"] for event in data) == " Paris, of course."
    assert data[-1]["sla"] == "realtime"


def test_no_class_no_job_and_an_ended_one_are_refused(door, node, wait_until):
    for body in ({}, {"sla": "urgent"}, {"sla": 3}):
        response = promote(door, **body)
        assert (response.status_code, response.json()["error"]["param"]) == (400, "sla")
    assert promote(door, sla="realtime").status_code == 404
    create(door)
    wait_until(lambda: door.http.get("/v1/jobs/r").json()["status"] == "finished")
    response = promote(door, sla="realtime")
    assert (response.status_code, response.json()["error"]["code"]) == (409, "ended")


@pytest.fixture
def lockstep(monkeypatch, capfd, door):
    """Runs a command line against the door's store; gives exit code, stdout, stderr."""
    from ingest.command.main import run
    from workers.settings import settings

    monkeypatch.setenv("LOCKSTEP_REDIS_URL", door.desk.settings.redis_url)
    settings.cache_clear()

    def call(*arguments):
        code = run(arguments)
        return code, *capfd.readouterr()

    yield call
    settings.cache_clear()


def test_the_command_promotes_and_says_what_became_of_it(door, lockstep):
    create(door)
    assert lockstep("promote", "r", "--sla", "realtime")[:2] == (0, "promoted\n")
    code, out, _ = lockstep("promote", "r", "--sla", "batch", "--json")
    expected = {"id": "r", "result": "demoted", "sla": "batch", "was": "realtime"}
    assert (code, json.loads(out)) == (0, expected)
    code, _, err = lockstep("promote", "nobody", "--sla", "batch")
    assert (code, "nothing is known" in err) == (1, True)
    code, _, err = lockstep("promote", "r", "--sla", "urgent")
    assert (code, "must be one of realtime, standard, batch" in err) == (2, True)
    door.desk.store.cancel("r")
    code, _, err = lockstep("promote", "r", "--sla", "realtime")
    assert (code, "has ended" in err) == (1, True)
