"""The page and its feed, without a browser: what is served, to whom, and what a look says."""

import json
import re

import pytest

from ingest.access.keys import Key, add_key
from ingest.dashboard.page import FOLDER
from tests.ingest.stub_node import Play
from workers.wire import EndEvent

NAMES = sorted(path.name for path in FOLDER.iterdir())


def test_the_page_may_load_nothing_but_its_own_files(door):
    response = door.http.get("/")
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
    assert response.headers["x-content-type-options"] == "nosniff"
    for link in re.findall(r'(?:src|href)="([^"#]+)"', response.text):
        assert door.http.get(link).status_code == 200, link


@pytest.mark.parametrize("name", NAMES)
def test_each_file_is_as_the_policy_wants_it(name):
    """No style or script inside the page, no element made of text, nothing from elsewhere."""
    text = (FOLDER / name).read_text()
    assert len(text.splitlines()) <= 250
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", text)
    assert not re.search(r"<script(?! type=\"module\" src)|<style|\sstyle=|\son\w+=", text)
    assert set(re.findall(r"https?://[^\s\"']+", text)) <= {"http://www.w3.org/2000/svg"}


def test_what_the_browser_has_is_not_sent_again(door):
    tag = door.http.get("/dashboard/app.js").headers["etag"]
    again = door.http.get("/dashboard/app.js", headers={"If-None-Match": tag})
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize("name", ["nothing.js", "..%2Fpage.py", "%2e%2e%2flook.py", "page.py"])
def test_there_is_no_other_file(door, name):
    assert door.http.get(f"/dashboard/{name}").status_code == 404


def test_a_look_tells_of_pools_classes_and_jobs(door, node, wait_until):
    node.report(running=1, capacity=4, free_blocks=48, step_ms=12.5, batch=3)
    node.play = Play(pause_after=1)
    door.http.post("/v1/jobs", json={"prompt": "hi", "id": "runs", "sla": "batch"})
    wait_until(lambda: door.http.get("/v1/node").json()["running"])
    look = door.http.get("/v1/node").json()
    (pool,) = look["pools"]
    assert (pool["pool"], pool["step_ms"], pool["batch"]) == ("cpu", 12.5, 3)
    assert "histograms" not in pool
    assert [row["sla"] for row in look["classes"]] == ["realtime", "standard", "batch"]
    (job,) = look["running"]
    assert (job["id"], job["reason"], job["tokens"]) == ("runs", "cpu: stub", 1)
    assert look["placements"] == {"cpu": {"unplanned": 1}}
    assert look["tiers"][0] == {
        **{"tier": "RAM", "pool": "cpu", "sessions": 1, "used": 0.25, "found_tokens": 0.0}
    }
    node.go.set()
    wait_until(lambda: door.http.get("/v1/node").json()["ended"])
    node.play = Play(end=EndEvent(status="failed", error="too deep", code="numeric_error"))
    door.http.post("/v1/jobs", json={"prompt": "hi", "id": "fails"})
    wait_until(lambda: door.http.get("/v1/node").json()["failed"])
    look = door.http.get("/v1/node").json()
    assert [job["error"] for job in look["failed"]] == ["too deep"]
    assert [job["id"] for job in look["ended"]] == ["fails", "runs"]
    assert "Paris" not in json.dumps(look)  # what was answered is nobody's who may look


def test_the_feed_tells_again_and_again_and_ends_with_its_watchers(door, node, wait_until):
    seen = []
    with door.http.stream("GET", "/v1/node/events") as response:
        for line in response.iter_lines():
            if line.startswith("data: "):
                seen.append(json.loads(line.removeprefix("data: ")))
            if len(seen) == 2:
                break
    assert seen[1]["at_ms"] > seen[0]["at_ms"]
    feed = door.server.config.app.app.state.feed
    wait_until(lambda: feed.watchers == 0 and feed.looking.done())


def test_a_record_written_by_hand_stops_no_look(door, node):
    store = door.desk.store
    store.redis.lpush(store.keys.failures, "odd", "gone")
    store.redis.set(store.keys.job("odd"), "no hash")
    assert door.http.get("/v1/node").json()["failed"] == []


def test_who_may_not_look_sees_the_page_alone(door):
    store = door.desk.store
    infer = add_key(store, Key(id="a", scopes=("infer",)))
    looks = add_key(store, Key(id="b", scopes=("metrics",)))
    door.desk.gate.read_at = float("-inf")
    assert door.http.get("/").status_code == 200
    assert door.http.get("/v1/node/events").status_code == 401
    for secret, status in ((infer, 403), (looks, 200)):
        headers = {"Authorization": f"Bearer {secret}"}
        assert door.http.get("/v1/node", headers=headers).status_code == status
