"""The list of jobs: newest first, filtered, a page at a time, each tenant's own."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ingest.stub_node import Play
from workers.job_list import BATCH, Place, Wanted, batches, list_jobs, parse_place
from workers.wire import GROUP, EndEvent, Keys
from workers.worker_store import WorkerStore

PROMPT = {"prompt": "The capital of France is"}


def create(door, **fields):
    assert door.http.post("/v1/jobs", json={**PROMPT, **fields}).status_code == 202


def listed(door, **asked):
    response = door.http.get("/v1/jobs", params=asked)
    assert response.status_code == 200, response.text
    return response.json()


def ids(answer):
    return [job["id"] for job in answer["data"]]


def test_the_newest_comes_first_and_pages_meet(door):
    for number in range(5):
        create(door, id=f"j{number}")
    first = listed(door, limit=2)
    assert (ids(first), first["has_more"]) == (["j4", "j3"], True)
    second = listed(door, limit=2, after=first["next"])
    third = listed(door, limit=2, after=second["next"])
    assert (ids(second), ids(third), third["next"]) == (["j2", "j1"], ["j0"], None)


def test_states_and_classes_are_filters(door, node, wait_until):
    create(door, id="a", sla="batch")
    wait_until(lambda: listed(door, state="finished")["data"])
    node.play = Play(end=EndEvent(status="failed", error="too deep", code="numeric_error"))
    create(door, id="b", session_id="s", sla="realtime")
    wait_until(lambda: ids(listed(door, state="failed,expired")) == ["b"])
    (failed,) = listed(door, session="s")["data"]
    assert failed["error"] == {"message": "too deep", "code": "numeric_error"}
    assert failed["timings"]["pool"] == "cpu" and "text" not in failed
    assert ids(listed(door, sla="batch")) == ["a"]
    assert ids(listed(door, state="running")) == []


def test_times_are_filters(door):
    create(door, id="a")
    arrival = listed(door)["data"][0]["arrival_ms"]
    assert ids(listed(door, since=arrival)) == ["a"]
    assert ids(listed(door, until=arrival)) == []
    assert ids(listed(door, since="2020-01-01T00:00:00Z", until="2999-01-01")) == ["a"]


def test_a_refused_request_is_in_the_list(door):
    store, stream = door.desk.store, "lockstep:requests:batch"
    store.redis.xgroup_create(stream, GROUP, mkstream=True)
    entry = store.redis.xadd(stream, {"prompt": ""}).decode()
    end = EndEvent(status="failed", error="prompt: is empty", code="bad_request")
    told = {"sla": "batch", "entry_id": entry, "tenant": "default", "end": end, "body": b""}
    store.refuse(request_id=f"batch-{entry}", unread=True, **told)
    assert ids(listed(door, state="failed")) == [f"batch-{entry}"]


def test_each_tenant_sees_its_own(door):
    store = door.desk.store
    accept = {"sla": "batch", "body": b"\x80"}
    store.accept(request_id="acme--x", tenant="acme", **accept)
    store.accept(request_id="y", tenant="default", **accept)
    assert ids(listed(door)) == ["y"]
    assert [job["id"] for job in list_jobs(store, Wanted("acme"), limit=9).jobs] == ["x"]


@pytest.mark.parametrize(
    "name, value",
    [
        ("state", "done"),
        ("sla", "urgent"),
        ("session", "../x"),
        ("since", "yesterday"),
        ("limit", "0"),
        ("after", "x"),
        ("color", "red"),
    ],
)
def test_what_is_no_filter_is_refused_by_name(door, name, value):
    response = door.http.get("/v1/jobs", params={name: value})
    assert (response.status_code, response.json()["error"]["param"]) == (400, name)


def test_what_has_expired_leaves_the_list(door):
    store = WorkerStore(door.desk.store.url, door.desk.keys)
    for name in ("gone", "kept"):
        create(door, id=name)
        store.cancel(name)
    store.redis.zadd(store.keys.jobs, {"gone": 1, "kept": 1})  # as if that time had come
    store.redis.delete(store.keys.job("gone"))
    store.forget_jobs()
    assert store.redis.zrange(store.keys.jobs_of("default"), 0, -1) == [b"kept"]
    assert store.redis.zcard(store.keys.jobs) == 1  # looked at again when its record may have gone


@settings(max_examples=12)
@given(st.lists(st.integers(1, 4), max_size=40), st.integers(1, 7))
def test_pages_hold_each_job_once_in_order(valkey_url, arrivals, limit):
    """Also where many came in the same millisecond."""
    store = WorkerStore(valkey_url, Keys("lockstep"))
    store.redis.flushall()
    expected = []
    for number, arrival in enumerate(arrivals):
        place = Place(arrival, f"j{number:03}")
        store.redis.zadd(store.keys.jobs_of("default"), {place.request_id: arrival})
        store.redis.hset(store.keys.job(place.request_id), "status", "queued")
        expected.append(place)
    found, after = [], None
    while True:
        page = list_jobs(store, Wanted(), limit=limit, after=after)
        found += [job["id"] for job in page.jobs]
        if page.next is None:
            break
        after = parse_place(str(page.next))
    assert found == [place.request_id for place in sorted(expected, reverse=True)]


@settings(max_examples=25)
@given(
    arrivals=st.lists(st.integers(1, 3), min_size=1, max_size=30),
    size=st.integers(2, 6),
    changes=st.lists(st.tuples(st.sampled_from(["come", "go"]), st.integers(0, 29))),
)
def test_jobs_that_stay_are_seen_once_while_others_come_and_go(valkey_url, arrivals, size, changes):
    """In the millisecond at which a batch ended one that came showed the next one twice."""
    store = WorkerStore(valkey_url, Keys("lockstep"))
    store.redis.flushall()
    key = store.keys.jobs_of("default")
    there = [Place(arrival, f"j{number:03}") for number, arrival in enumerate(arrivals)]
    store.redis.zadd(key, {place.request_id: place.arrival_ms for place in there})
    seen, gone = [], set()
    for batch in batches(store, Wanted(), None, size):
        seen += batch
        if changes:
            what, number = changes.pop()
            place = Place(1 + number % 3, f"k{number:03}")
            if what == "come":
                store.redis.zadd(key, {place.request_id: place.arrival_ms})
            elif number < len(there):
                store.redis.zrem(key, there[number].request_id)
                gone.add(there[number])
    stayed = [place for place in sorted(there, reverse=True) if place not in gone]
    assert [place for place in seen if place in stayed] == stayed
    assert seen == sorted(set(seen), reverse=True)


@pytest.mark.parametrize("name", ["__proto__", "constructor", "events", "-", "null", "0"])
def test_an_id_that_means_something_elsewhere_is_an_id(door, node, wait_until, name):
    create(door, id=name, session_id=name)
    wait_until(lambda: ids(listed(door, session=name, state="finished")) == [name])
    job = door.http.get(f"/v1/jobs/{name}").json()
    assert (job["id"], job["session_id"], job["text"]) == (name, name, " Paris, of course.")
    assert "event: end" in door.http.get(f"/v1/jobs/{name}/events").text
    assert door.http.get(f"/v1/sessions/{name}").status_code == 404  # a stub keeps none
    (row,) = door.http.get("/v1/node").json()["ended"]
    assert row["id"] == name


def test_more_than_a_batch_of_one_millisecond_is_read(door):
    store, names = door.desk.store, [f"j{number:04}" for number in range(2 * BATCH + 3)]
    with store.redis.pipeline() as pipeline:
        for name in names:
            pipeline.zadd(store.keys.jobs_of("default"), {name: 7})
            pipeline.hset(store.keys.job(name), mapping={"status": "queued", "arrival_ms": 7})
        pipeline.execute()
    found = list_jobs(store, Wanted(), limit=len(names) + 1)
    assert [job["id"] for job in found.jobs] == names[::-1] and found.next is None
