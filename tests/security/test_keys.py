"""Keys of the door: without one nobody comes in, and each opens only what it was given."""

import contextlib
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from fastapi.routing import APIRoute

from ingest.access import gate
from ingest.access.gate import Gate, is_loopback
from ingest.access.keys import (
    SCOPES,
    Key,
    Limits,
    add_key,
    hash_of,
    read_keys,
    remove_key,
    rotate_key,
)
from ingest.app import create_app
from ingest.desk import Desk
from tests.ingest.conftest import running

ROOT = Path(__file__).parents[2]
PUBLIC = {"/healthz", "/readyz", "/", "/dashboard/{name}"}  # pages without a word of data
ASKED = [  # scope, method, path
    ("infer", "POST", "/v1/chat/completions"),
    ("infer", "POST", "/v1/completions"),
    ("infer", "GET", "/v1/models"),
    ("infer", "POST", "/v1/tokenize"),
    ("jobs", "POST", "/v1/jobs"),
    ("jobs", "GET", "/v1/jobs/x"),
    ("jobs", "GET", "/v1/jobs/x/events"),
    ("jobs", "DELETE", "/v1/jobs/x"),
    ("jobs", "POST", "/v1/jobs/x/promote"),
    ("sessions", "GET", "/v1/sessions"),
    ("sessions", "GET", "/v1/sessions/x"),
    ("sessions", "DELETE", "/v1/sessions/x"),
    ("jobs", "GET", "/v1/jobs"),
    ("jobs", "GET", "/v1/files"),
    ("jobs", "GET", "/v1/batches"),
    ("infer", "POST", "/v1/responses"),
    ("infer", "POST", "/v1/messages"),
    ("metrics", "GET", "/metrics"),
    ("metrics", "GET", "/v1/node"),
]


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    """A key counts, and stops to count, at once."""
    monkeypatch.setattr(gate, "KEYS_AGE_S", 0.0)


def bearer(secret):
    return {"Authorization": f"Bearer {secret}"}


def code_of(response):
    return response.status_code, response.json()["error"]["code"]


def now_ms():
    return time.time_ns() // 1_000_000


def routes_of(app):
    """Every route, also of routers that are included lazily."""
    for route in app.routes:
        if isinstance(route, APIRoute):
            yield route
        yield from getattr(getattr(route, "original_router", None), "routes", ())


def scopes_of(route):
    calls = (getattr(one, "dependency", None) for one in route.dependencies)
    return {call.scope for call in calls if hasattr(call, "scope")}


def test_every_route_says_which_scope_it_needs(settings):
    routes = [
        route for route in routes_of(create_app(Desk(settings))) if hasattr(route, "dependencies")
    ]
    assert len(routes) > 15
    for route in routes:
        wanted = scopes_of(route)
        assert wanted <= set(SCOPES) and (wanted or route.path in PUBLIC), route.path


def test_without_keys_a_door_on_loopback_is_open(door):
    assert door.http.get("/v1/models").status_code == 200
    assert door.http.get("/v1/models", headers=bearer("none")).status_code == 200


@pytest.mark.parametrize(("scope", "method", "path"), ASKED)
def test_once_there_is_a_key_nobody_comes_in_without_one(door, scope, method, path):
    add_key(door.desk.store, Key(id="some"))
    for headers in ({}, bearer("lsk-wrong"), {"x-api-key": "no"}, {"Authorization": "Basic eA=="}):
        response = door.http.request(method, path, headers=headers, json={})
        assert response.status_code == 401, path
        assert response.headers["www-authenticate"] == "Bearer"
    assert door.http.get("/healthz").status_code == 200


@pytest.mark.parametrize(("scope", "method", "path"), ASKED)
def test_a_key_opens_what_its_scopes_say_and_nothing_else(door, scope, method, path):
    others = tuple(s for s in SCOPES if s not in (scope, "admin"))
    without = add_key(door.desk.store, Key(id="without", scopes=others))
    with_it = add_key(door.desk.store, Key(id="with", scopes=(scope,)))
    admin = add_key(door.desk.store, Key(id="admin", scopes=("admin",)))
    refused = door.http.request(method, path, headers=bearer(without), json={})
    assert refused.status_code == 403 and f"needs the scope '{scope}'" in refused.text
    for secret in (with_it, admin):
        response = door.http.request(method, path, headers=bearer(secret), json={})
        assert response.status_code in (200, 400, 404), path


def test_a_key_may_also_come_as_anthropics_clients_send_it(door):
    secret = add_key(door.desk.store, Key(id="some"))
    assert door.http.get("/v1/models", headers={"x-api-key": secret}).status_code == 200


def test_nothing_close_to_a_key_is_one(door):
    secret = add_key(door.desk.store, Key(id="some"))
    hashed = hash_of(secret)
    for wrong in (
        secret[:-1],
        secret + "x",
        secret.upper(),
        "some",
        hashed,
        "lsk-",
        "null",
    ):
        assert door.http.get("/v1/models", headers=bearer(wrong)).status_code == 401, wrong


def test_a_key_that_has_expired_says_so_and_opens_nothing(door):
    secret = add_key(door.desk.store, Key(id="old", expires_ms=now_ms() - 1))
    assert code_of(door.http.get("/v1/models", headers=bearer(secret))) == (401, "expired_api_key")


def test_a_rotated_key_opens_with_both_secrets_until_the_overlap_ends(door):
    store = door.desk.store
    first = add_key(store, Key(id="some"))
    second = rotate_key(store, "some", now_ms=now_ms(), overlap_s=3600)
    for secret in (first, second):
        assert door.http.get("/v1/models", headers=bearer(secret)).status_code == 200
    third = rotate_key(store, "some", now_ms=now_ms() - 10_000, overlap_s=5)
    statuses = [
        door.http.get("/v1/models", headers=bearer(s)).status_code for s in (first, second, third)
    ]
    assert statuses == [401, 401, 200]


def test_a_removed_key_opens_nothing_within_a_second(settings, monkeypatch, wait_until):
    monkeypatch.undo()
    with running(settings) as door:
        secret = add_key(door.desk.store, Key(id="some"))
        add_key(door.desk.store, Key(id="other"))
        wait_until(lambda: door.http.get("/v1/models").status_code == 401)
        assert door.http.get("/v1/models", headers=bearer(secret)).status_code == 200
        remove_key(door.desk.store, "some")
        wait_until(lambda: door.http.get("/v1/models", headers=bearer(secret)).status_code == 401)


def test_the_last_key_taken_away_leaves_a_door_that_others_reach_shut(settings):
    """On loopback it is open again; elsewhere nobody comes in."""
    with running(settings.model_copy(update={"host": "0.0.0.0"})) as door:
        secret = add_key(door.desk.store, Key(id="some"))
        assert door.http.get("/v1/models", headers=bearer(secret)).status_code == 200
        remove_key(door.desk.store, "some")
        assert door.http.get("/v1/models").status_code == 401
        assert door.http.get("/v1/models", headers=bearer(secret)).status_code == 401


def test_an_open_door_asks_nobody_and_still_knows_its_keys(settings):
    with running(settings.model_copy(update={"host": "0.0.0.0", "open": True})) as door:
        secret = add_key(door.desk.store, Key(id="acme", tenant="acme", scopes=("infer",)))
        assert door.http.get("/v1/models").status_code == 200
        assert door.http.get("/v1/sessions").status_code == 200
        assert door.http.get("/v1/sessions", headers=bearer(secret)).status_code == 403


def test_keys_count_on_while_the_store_is_away(settings):
    """Those of the last look; without any, nobody comes in, and is told when to come back."""
    with running(settings) as door:
        secret = add_key(door.desk.store, Key(id="some"))
        assert door.http.get("/v1/models", headers=bearer(secret)).status_code == 200
        door.desk.store.redis.connection_pool.connection_kwargs["port"] = 1
        door.desk.store.redis.connection_pool.disconnect()
        assert door.http.get("/v1/models", headers=bearer(secret)).status_code == 200
        assert door.http.get("/v1/models").status_code == 401


def test_what_is_no_key_in_the_store_is_passed_over(door):
    door.desk.store.redis.hset("lockstep:keys", mapping={"a": b"\xff", "b": b"{}", "c": b"[]"})
    secret = add_key(door.desk.store, Key(id="some"))
    assert list(read_keys(door.desk.store)) == ["some"]
    assert door.http.get("/v1/models", headers=bearer(secret)).status_code == 200


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("[::1]", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("", False),
        ("10.0.0.1", False),
        ("127.0.0.1.evil.example", False),
        ("localhost.evil.example", False),
        ("2130706433", False),
    ],
)
def test_loopback_is_told_from_what_only_looks_like_it(host, expected):
    assert is_loopback(host) is expected


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},  # its name resolves to 127.0.0.1: DNS rebinding
        {"Host": "evil.example:8000"},
        {"Host": "127.0.0.1.evil.example"},
        {"Host": ""},
        {"Host": "[::1"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost.evil.example"},
    ],
)
def test_a_page_of_the_web_does_not_reach_an_open_door_through_its_readers_browser(door, headers):
    response = door.http.post("/v1/jobs", headers=headers, content=b'{"prompt": "x"}')
    assert code_of(response) == (403, "foreign_origin")
    assert door.desk.store.redis.keys("lockstep:requests:*") == []


def test_our_own_page_does(door):
    for host in ("localhost:8000", "[::1]:8000", "127.0.0.1"):
        headers = {"Host": host, "Origin": f"http://{host}"}
        assert door.http.get("/v1/models", headers=headers).status_code == 200


def api_process(settings, **variables):
    """python -m ingest with these settings; ends within the time, or is killed."""
    environment = {
        "PATH": "/usr/bin:/bin",
        "LOCKSTEP_HOME": str(settings.home),
        "LOCKSTEP_MODEL": settings.model,
        "LOCKSTEP_REDIS_URL": settings.url,
        "LOCKSTEP_PORT": str(settings.port),
        **variables,
    }
    return subprocess.Popen(
        [sys.executable, "-m", "ingest"], cwd=ROOT, env=environment,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_a_door_that_others_reach_does_not_open_without_a_key(settings):
    process = api_process(settings, LOCKSTEP_HOST="0.0.0.0")
    _, said = process.communicate(timeout=60)
    assert process.returncode == 78  # its keeper takes its time
    assert "lockstep key add" in said and "LOCKSTEP_OPEN" in said and "Traceback" not in said


@pytest.mark.parametrize("has_key", [True, False], ids=["key", "LOCKSTEP_OPEN"])
def test_it_opens_with_a_key_or_when_it_is_told_to(settings, wait_until, has_key):
    desk = Desk(settings)
    if has_key:
        add_key(desk.store, Key(id="some", limits=Limits()))
    process = api_process(settings, LOCKSTEP_HOST="0.0.0.0", LOCKSTEP_OPEN=str(int(not has_key)))
    try:

        def answer():
            assert process.poll() is None, process.communicate()
            with contextlib.suppress(httpx.HTTPError):
                return httpx.get(f"http://127.0.0.1:{settings.port}/v1/sessions", timeout=5)

        wait_until(answer)
        assert answer().status_code == (401 if has_key else 200)
    finally:
        process.kill()
        process.communicate()


def test_a_look_at_the_keys_is_shared_by_all_who_wait(settings, monkeypatch):
    """A slow store is not asked once for each of a thousand clients."""
    import asyncio

    calls = []

    def slow(store):
        calls.append(store)
        time.sleep(0.1)
        return {}

    monkeypatch.setattr(gate, "read_keys", slow)

    async def many():
        door = Gate(settings, None)
        await asyncio.gather(*(door.enter({"host": "localhost"}, "infer") for _ in range(200)))

    asyncio.run(many())
    assert len(calls) == 1
