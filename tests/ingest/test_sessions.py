"""GET and DELETE /v1/sessions: pages, one session, forgetting, and what is refused."""

import pytest

from tests.ingest.kept_sessions import keep, paths_of


@pytest.fixture
def tier(door, tiny_home, tmp_path):
    """Files of a home of its own: the door's home is shared between tests."""
    from tests.ingest.kept_sessions import tier_at

    tier = tier_at(tmp_path)
    door.desk._tier = tier
    yield tier
    tier.close()


def error_of(response):
    error = response.json()["error"]
    return response.status_code, error["code"], error["param"]


def test_no_sessions_are_an_empty_list(door, tier):
    expected = {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}
    assert door.http.get("/v1/sessions").json() == expected


def test_sessions_come_in_pages(door, tier):
    for name in "edcba":
        keep(tier, name, num_tokens=2)
    keep(tier, "bb", num_tokens=2, tenant="acme")
    found, after = [], ""
    while True:
        params = {"limit": 2, "after": after}
        page = door.http.get("/v1/sessions", params=params).json()
        found.append([one["id"] for one in page["data"]])
        after = page["last_id"]
        if not page["has_more"]:
            break
    assert found == [["a", "b"], ["c", "d"], ["e"]]


def test_a_session_in_a_list_says_what_it_takes(door, tier):
    keep(tier, "talk")
    (one,) = door.http.get("/v1/sessions").json()["data"]
    expected = {"id": "talk", "object": "session", "tokens": 600, "kv_tokens": 599}
    expected |= {"model": "tiny", "checkpoints": 1, "pinned": False, "used_ms": 2000}
    assert expected == {name: one[name] for name in expected}
    assert one["kv_bytes"] > 16384


@pytest.mark.parametrize("limit", ["0", "1001", "x", "-1", "", "1e3", "²", "9" * 30])
def test_a_limit_that_is_none_is_refused(door, tier, limit):
    response = door.http.get("/v1/sessions", params={"limit": limit})
    assert error_of(response) == (400, "bad_request", "limit")


def test_one_session_is_shown_with_its_messages(door, tier):
    keep(tier, "talk", forked_from="origin")
    store = door.desk.store
    store.redis.hset(store.keys.session("talk"), mapping={"pool": "cpu"})
    told = door.http.get("/v1/sessions/talk").json()
    expected = {"id": "talk", "tokens": 600, "checkpoints": [599], "digest": "00000000000000aa"}
    expected |= {"forked_from": "origin", "generation": 1, "pool": "cpu", "holder": None}
    assert expected == {name: told[name] for name in expected}
    assert told["messages"] == [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "hello"},
    ]


def test_another_tenants_session_is_not_shown(door, tier):
    keep(tier, "secret", tenant="acme")
    assert error_of(door.http.get("/v1/sessions/secret")) == (404, "session_not_found", "id")
    assert error_of(door.http.delete("/v1/sessions/secret")) == (404, "session_not_found", "id")
    assert tier.sessions.head("acme", "secret") is not None


def test_a_deleted_session_is_gone_with_its_files(door, tier):
    made = keep(tier, "talk")
    answer = door.http.delete("/v1/sessions/talk").json()
    assert (answer["id"], answer["deleted"]) == ("talk", True) and answer["bytes"] > 16384
    assert not any(path.exists() for path in paths_of(tier, made))
    assert door.http.get("/v1/sessions").json()["data"] == []
    assert error_of(door.http.delete("/v1/sessions/talk")) == (404, "session_not_found", "id")


def test_what_is_deleted_may_begin_anew(door, tier):
    made = keep(tier, "talk")
    store = door.desk.store
    store.redis.hset(store.keys.session("talk"), mapping={"fence": 3, "generation": 1})
    assert door.http.delete("/v1/sessions/talk").status_code == 200
    known = store.session("talk")  # whatever was committed before is void, wherever it lies
    assert (known["fence"], known["dropped"], known.get("generation")) == (4, 4, None)
    assert made.generation == 1


def test_a_session_whose_files_somebody_deleted_can_be_deleted(door, tier):
    store = door.desk.store
    store.redis.hset(store.keys.session("talk"), mapping={"generation": 4, "unsaved": "disk full"})
    assert door.http.delete("/v1/sessions/talk").json()["deleted"] is True
    assert set(store.session("talk")) <= {"waiting", "fence", "dropped"}
    assert error_of(door.http.delete("/v1/sessions/talk")) == (404, "session_not_found", "id")


def test_a_damaged_session_can_be_deleted(door, tier):
    keep(tier, "talk")
    for path in (tier.root / "sessions" / "default" / "talk").glob("*.manifest"):
        path.write_bytes(b"no manifest")
    assert error_of(door.http.get("/v1/sessions/talk"))[0] == 404
    assert door.http.delete("/v1/sessions/talk").json()["deleted"] is True
    assert error_of(door.http.delete("/v1/sessions/talk")) == (404, "session_not_found", "id")


def test_a_session_in_use_is_not_deleted(door, tier):
    keep(tier, "talk")
    store = door.desk.store
    store.redis.hset(store.keys.session("talk"), mapping={"holder": "r-7"})
    response = door.http.delete("/v1/sessions/talk")
    assert error_of(response) == (409, "session_in_use", "id")
    assert "'r-7'" in response.json()["error"]["message"] and response.headers["retry-after"]
    assert tier.sessions.head("default", "talk") is not None
    store.redis.hdel(store.keys.session("talk"), "holder")
    assert door.http.delete("/v1/sessions/talk").status_code == 200


@pytest.mark.parametrize("method", ["GET", "DELETE"])
@pytest.mark.parametrize("name", ["%2e%2e", "a--b", "a%20b", "x" * 65, "%C3%BC", "a%00b", "."])
def test_what_is_no_name_is_refused(door, tier, method, name):
    response = door.http.request(method, f"/v1/sessions/{name}".replace("/.", "/%2e"))
    assert error_of(response) == (400, "bad_request", "id")


@pytest.mark.parametrize("path", ["%2e%2e%2f%2e%2e%2fetc", "a%2Fb", "default/talk"])
def test_a_path_never_gets_as_far_as_the_disk(door, tier, path):
    assert error_of(door.http.get(f"/v1/sessions/{path}"))[:2] == (404, "not_found")


def test_files_are_opened_at_the_first_question(door, tmp_path):
    door.desk.settings = door.desk.settings.model_copy(update={"home": tmp_path / "new"})
    assert door.desk._tier is None
    assert door.http.get("/v1/sessions").status_code == 200
    assert (tmp_path / "new" / "kv").is_dir()
