"""One tenant never reads, ends, changes, lists or guesses what is another's."""

import json

import pytest

from ingest.access import gate
from ingest.access.keys import Key, add_key
from workers.wire import full_id

ANNA, BERT = "anna", "bert"
SECRET_WORDS = "the treasure lies under the oak"


@pytest.fixture
def of(door, monkeypatch):
    """The headers of a tenant's key."""
    monkeypatch.setattr(gate, "KEYS_AGE_S", 0.0)
    made = {}

    def headers(tenant):
        if tenant not in made:
            scopes = ("infer", "jobs", "sessions", "metrics")
            made[tenant] = add_key(door.desk.store, Key(id=tenant, tenant=tenant, scopes=scopes))
        return {"Authorization": f"Bearer {made[tenant]}"}

    return headers


@pytest.fixture
def job_of_anna(door, of):
    """A job of anna's that waits; nobody routes."""
    body = {"id": "plot77", "prompt": SECRET_WORDS, "metadata": {"note": SECRET_WORDS}}
    told = door.http.post("/v1/jobs", json=body, headers=of(ANNA))
    assert told.status_code == 202 and told.json()["id"] == "plot77"
    return "plot77"


WAYS = [  # method, what comes behind the id
    ("GET", "", None),
    ("GET", "/events", None),
    ("DELETE", "", None),
    ("POST", "/promote", {"sla": "realtime"}),
]
NAMES = (
    "plot77",
    "anna--plot77",
    "bert--plot77",
    "default--plot77",
    "--plot77",
    "anna%2D%2Dplot77",
    "plot77%00",
)


@pytest.mark.parametrize(("method", "behind", "body"), WAYS)
def test_a_job_of_another_tenant_is_not_there_by_any_name(
    door, of, job_of_anna, method, behind, body
):
    for tenant in (BERT, "default"):
        for name in NAMES:
            path = f"/v1/jobs/{name}{behind}"
            response = door.http.request(method, path, headers=of(tenant), json=body)
            assert response.status_code == 404, (tenant, name)
            assert SECRET_WORDS not in response.text
    mine = door.http.get("/v1/jobs/plot77", headers=of(ANNA)).json()
    assert (mine["status"], mine["sla"], mine["id"]) == ("accepted", "standard", "plot77")


def test_what_is_not_there_and_what_is_anothers_look_the_same(door, of, job_of_anna):
    answers = [door.http.get(f"/v1/jobs/{name}", headers=of(BERT)) for name in ("plot77", "nope")]
    told = [a.text.replace("plot77", "X").replace("nope", "X") for a in answers]
    assert told[0] == told[1] and answers[0].status_code == answers[1].status_code


def test_the_same_id_of_two_tenants_is_two_jobs(door, of, job_of_anna):
    """An id is nobody's to take: it gives no other tenant's result, and blocks none."""
    body = {"id": "plot77", "prompt": "mine"}
    told = door.http.post("/v1/jobs", json=body, headers=of(BERT))
    assert told.status_code == 202, "a new job, not anna's"
    for tenant in (ANNA, BERT):
        assert door.desk.store.job(full_id(tenant, "plot77"))["tenant"] == tenant
    door.http.delete("/v1/jobs/plot77", headers=of(BERT))
    assert door.http.get("/v1/jobs/plot77", headers=of(ANNA)).json()["status"] == "accepted"


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/chat/completions", "/v1/completions"])
def test_a_body_cannot_say_whose_it_is(door, of, path):
    body = {"id": "x", "prompt": "a", "tenant": ANNA}
    if "chat" in path:
        body = {"id": "x", "messages": [{"role": "user", "content": "a"}], "tenant": ANNA}
    headers = of(BERT)
    if path == "/v1/jobs":
        door.http.post(path, json=body, headers=headers)
    else:
        with door.http.stream("POST", path, json=body | {"stream": True}, headers=headers):
            pass
    assert door.desk.store.job("anna--x") is None
    assert door.desk.store.job("bert--x") is not None


@pytest.mark.parametrize("name", ["anna--x", "a--b", "../x", "x\x00", "x:y", "x y", "x" * 65, "ä"])
def test_no_id_reaches_out_of_its_tenant(door, of, name):
    told = door.http.post("/v1/jobs", json={"id": name, "prompt": "a"}, headers=of(BERT))
    assert (told.status_code, told.json()["error"]["param"]) == (400, "id")
    told = door.http.post("/v1/jobs", json={"session_id": name, "prompt": "a"}, headers=of(BERT))
    assert (told.status_code, told.json()["error"]["param"]) == (400, "session_id")


def test_answers_hold_the_tenants_own_ids(node, door, of):
    """Neither ids nor errors tell of the names that keys have in the store."""
    body = {"id": "a1", "messages": [{"role": "user", "content": "Hello"}]}
    whole = door.http.post("/v1/chat/completions", json=body, headers=of(BERT))
    job = door.http.get("/v1/jobs/a1", headers=of(BERT))
    streamed = door.http.post(
        "/v1/chat/completions", json=body | {"id": "a2", "stream": True}, headers=of(BERT)
    )
    events = door.http.get("/v1/jobs/a1/events", headers=of(BERT))
    for answer in (whole, job, streamed, events):
        assert answer.status_code == 200 and "bert--" not in answer.text
    assert whole.json()["lockstep"]["id"] == "a1"


def test_sessions_are_listed_shown_and_deleted_for_their_own_tenant_alone(door, of, monkeypatch):
    asked = []
    kind = type(door.desk.tier().sessions)
    monkeypatch.setattr(kind, "head", lambda _, tenant, name: asked.append((tenant, name)))
    for method in ("GET", "DELETE"):
        response = door.http.request(method, "/v1/sessions/talk", headers=of(BERT))
        assert response.status_code == 404
    assert asked == [(BERT, "talk")] * 2
    monkeypatch.undo()
    monkeypatch.setattr(gate, "KEYS_AGE_S", 0.0)
    for name in ("anna--talk", "..%2Fanna", "%2e%2e", "a%2Fb"):
        for method in ("GET", "DELETE"):
            response = door.http.request(method, f"/v1/sessions/{name}", headers=of(BERT))
            assert response.status_code in (400, 404), name
    listed = door.http.get("/v1/sessions?after=anna--", headers=of(BERT)).json()
    assert listed["data"] == []


def test_metrics_tell_of_no_tenant_key_id_or_word(door, of, job_of_anna):
    page = door.http.get("/metrics", headers=of(BERT)).text
    told = json.dumps([page])
    for word in (ANNA, "plot77", "treasure", "lsk-"):
        assert word not in told
