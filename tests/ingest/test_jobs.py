"""Jobs: accepted with 202, looked at, followed, resumed, cancelled."""

import json

import msgpack
import pytest

from tests.ingest.stub_node import Play
from workers.wire import EndEvent

PROMPT = {"prompt": "The capital of France is"}


def create(door, **fields):
    return door.http.post("/v1/jobs", json={**PROMPT, **fields})


def events(response):
    """[(id, event, data)] of a complete event stream."""
    found = []
    for frame in response.text.strip().split("\n\n"):
        if frame.startswith(":"):
            continue
        fields = dict(line.split(": ", 1) for line in frame.split("\n"))
        found.append((fields["id"], fields["event"], json.loads(fields["data"])))
    return found


def test_a_job_is_accepted_with_its_place(door):
    response = create(door, sla="batch", id="mine")
    assert response.status_code == 202
    assert response.headers["location"] == "/v1/jobs/mine"
    assert tuple(response.json()[name] for name in ("id", "status", "sla")) == (
        "mine",
        "accepted",
        "batch",
    )
    assert door.desk.store.redis.xlen("lockstep:requests:batch") == 1


def test_a_job_without_an_id_gets_one(door):
    first, second = create(door).json()["id"], create(door).json()["id"]
    assert first != second
    assert door.http.get(f"/v1/jobs/{first}").status_code == 200


def test_the_same_id_is_one_job(door):
    create(door, id="once")
    again = create(door, id="once")
    assert (again.status_code, again.json()["id"]) == (200, "once")
    assert door.desk.store.redis.xlen("lockstep:requests:standard") == 1


def test_a_job_tells_its_result(door, node, wait_until):
    create(door, id="r", metadata={"order": 7})
    wait_until(lambda: door.http.get("/v1/jobs/r").json()["status"] == "finished")
    job = door.http.get("/v1/jobs/r").json()
    expected = {"id": "r", "object": "job", "sla": "standard", "pool": "cpu", "error": None}
    expected |= {"text": " Paris, of course.", "finish_reason": "stop", "metadata": {"order": 7}}
    expected |= {"reason": "cpu: stub", "digest": "00000000000000ff", "ttft_ms": 12.5}
    assert expected == {name: job[name] for name in expected}
    assert job["usage"]["completion_tokens"] == 4
    assert "request" not in job


def test_a_failed_job_says_why(door, node, wait_until):
    node.play = Play(end=EndEvent(status="failed", error="too deep", code="numeric_error"))
    create(door, id="f")
    wait_until(lambda: door.http.get("/v1/jobs/f").json()["status"] == "failed")
    error = door.http.get("/v1/jobs/f").json()["error"]
    assert error == {"message": "too deep", "code": "numeric_error"}


def test_events_are_the_tokens_and_the_end(door, node):
    create(door, id="e")
    found = events(door.http.get("/v1/jobs/e/events"))
    assert [entry_id for entry_id, _, _ in found] == ["0-1", "0-2", "0-3", "0-4", "1-0"]
    assert [event for _, event, _ in found] == ["token"] * 4 + ["end"]
    assert "".join(data["text"] for _, _, data in found) == " Paris, of course."
    assert (found[-1][2]["status"], found[-1][2]["finish_reason"]) == ("finished", "stop")


def test_events_resume_behind_the_last_event_id(door, node):
    create(door, id="e")
    door.http.get("/v1/jobs/e/events")
    for name, value in (("headers", {"Last-Event-ID": "0-2"}), ("params", {"after": "0-2"})):
        found = events(door.http.get("/v1/jobs/e/events", **{name: value}))
        assert [entry_id for entry_id, _, _ in found] == ["0-3", "0-4", "1-0"]


def test_a_follower_that_was_cut_off_misses_nothing_and_repeats_nothing(door, node):
    node.play = Play(pause_after=2)
    create(door, id="cut")
    seen = []
    with door.http.stream("GET", "/v1/jobs/cut/events") as response:
        for line in response.iter_lines():
            if line.startswith("id: "):
                seen.append(line.removeprefix("id: "))
            if len(seen) == 2:
                break
    node.go.set()
    rest = door.http.get("/v1/jobs/cut/events", headers={"Last-Event-ID": seen[-1]})
    seen += [entry_id for entry_id, _, _ in events(rest)]
    assert seen == ["0-1", "0-2", "0-3", "0-4", "1-0"]


def test_who_comes_back_after_the_end_is_told_to_stay_away(door, node):
    create(door, id="e")
    door.http.get("/v1/jobs/e/events")
    response = door.http.get("/v1/jobs/e/events", headers={"Last-Event-ID": "1-0"})
    assert (response.status_code, response.content) == (204, b"")


@pytest.mark.parametrize("last", ["x", "1-", "-1", "0-1-2", "٣-٤", "9" * 400 + "x"])
def test_a_last_event_id_that_is_none_is_refused(door, last):
    create(door, id="e")
    headers = {"Last-Event-ID": last.encode()}
    response = door.http.get("/v1/jobs/e/events", headers=headers)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "Last-Event-ID")


def test_the_end_is_told_although_the_stream_has_expired(door, node, wait_until):
    create(door, id="old")
    wait_until(lambda: door.http.get("/v1/jobs/old").json()["status"] == "finished")
    door.desk.store.redis.delete("lockstep:tokens:old")
    found = events(door.http.get("/v1/jobs/old/events"))
    assert [(entry_id, event) for entry_id, event, _ in found] == [("1-0", "end")]
    assert found[0][2]["text"] == " Paris, of course."


def test_a_waiting_job_is_cancelled_at_once(door):
    create(door, id="c")
    response = door.http.delete("/v1/jobs/c")
    assert (response.status_code, response.json()["result"]) == (200, "cancelled")
    assert door.http.get("/v1/jobs/c").json()["status"] == "cancelled"
    assert door.http.delete("/v1/jobs/c").json()["result"] == "ended"


def test_a_running_job_is_told_to_stop(door, node, wait_until):
    node.play = Play(pause_after=1)
    create(door, id="c")
    wait_until(lambda: len(door.desk.store.tokens("c")) == 1)
    assert door.http.delete("/v1/jobs/c").json()["result"] == "cancelling"
    found = events(door.http.get("/v1/jobs/c/events"))
    assert (found[-1][0], found[-1][2]["status"]) == ("1-0", "cancelled")


MESSAGES = {"prompt": "hi"}, {"prompt": "hi", "id": None, "tenant": None}


@pytest.mark.parametrize(
    "words", [["prompt", "hi"], *(["m", msgpack.packb(message)] for message in MESSAGES)]
)
def test_what_a_plain_xadd_sent_is_queued_before_a_router_reads_it(door, words):
    redis = door.desk.store.redis
    entry = redis.execute_command("XADD", "lockstep:requests:batch", "*", *words).decode()
    job = door.http.get(f"/v1/jobs/batch-{entry}").json()
    assert (job["id"], job["status"], job["sla"]) == (f"batch-{entry}", "queued", "batch")
    redis.xdel("lockstep:requests:batch", entry)
    assert door.http.get(f"/v1/jobs/batch-{entry}").status_code == 404


@pytest.mark.parametrize("field", ["id", "tenant"])
def test_what_has_another_name_is_not_found_by_its_entry(door, field):
    redis = door.desk.store.redis
    for fields in ({field: "other"}, {"m": msgpack.packb({field: "other"})}):
        entry = redis.xadd("lockstep:requests:batch", fields).decode()
        assert door.http.get(f"/v1/jobs/batch-{entry}").status_code == 404


@pytest.mark.parametrize(
    "method, path", [("GET", ""), ("DELETE", ""), ("GET", "/events"), ("GET", "%3A%2F/events")]
)
def test_an_unknown_job_is_404(door, method, path):
    response = door.http.request(method, f"/v1/jobs/nobody{path}")
    assert response.status_code == 404
    assert response.json()["error"]["code"] in ("job_not_found", "not_found")


def test_the_schema_names_the_fields_of_a_request(door):
    schema = door.http.get("/v1/schema").json()
    assert {"prompt", "messages", "sla", "webhook", "deadline_ms"} <= schema["properties"].keys()


def test_an_id_beyond_the_end_gets_the_end_and_no_token_twice(door, node):
    create(door, id="e")
    door.http.get("/v1/jobs/e/events")
    found = events(door.http.get("/v1/jobs/e/events", headers={"Last-Event-ID": "0-99"}))
    assert [entry_id for entry_id, _, _ in found] == ["1-0"]
    for beyond in ("1-1", "2", "9" * 19 + "-1"):
        response = door.http.get("/v1/jobs/e/events", headers={"Last-Event-ID": beyond})
        assert (response.status_code, response.content) == (204, b""), beyond


def test_after_retention_there_is_no_job_to_follow(door, node, wait_until):
    create(door, id="old")
    wait_until(lambda: door.http.get("/v1/jobs/old").json()["status"] == "finished")
    door.desk.store.redis.delete("lockstep:tokens:old", "lockstep:job:old")
    response = door.http.get("/v1/jobs/old/events", headers={"Last-Event-ID": "0-2"})
    assert (response.status_code, response.json()["error"]["code"]) == (404, "job_not_found")


def test_results_live_as_long_as_the_setting_says(door, node, wait_until):
    create(door, id="r")
    wait_until(lambda: door.http.get("/v1/jobs/r").json()["status"] == "finished")
    store = door.desk.store
    for key in (store.keys.job("r"), store.keys.tokens("r")):
        assert 0 < store.redis.ttl(key) <= door.desk.settings.result_ttl_s
