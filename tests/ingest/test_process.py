"""The api as a process: it waits for nothing, stops at once, and leaves running requests alone."""

import os
import signal
import subprocess
import sys
import threading

import httpx
import pytest

from tests.ingest.conftest import ROOT
from tests.ingest.stub_node import Play, StubNode
from workers.store import Store

HELLO = [{"role": "user", "content": "Hello"}]


@pytest.fixture
def api(settings, wait_until):
    """python -m ingest, and a client for it."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("LOCKSTEP_")}
    env |= {
        "LOCKSTEP_HOME": str(settings.home),
        "LOCKSTEP_MODEL": settings.model,
        "LOCKSTEP_REDIS_URL": settings.url,
        "LOCKSTEP_PORT": str(settings.port),
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "ingest"], cwd=ROOT, env=env, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    client = httpx.Client(base_url=f"http://127.0.0.1:{settings.port}", timeout=20)

    def is_up() -> bool:
        try:
            return client.get("/v1/models").status_code == 200
        except httpx.TransportError:
            return False

    try:
        wait_until(is_up)
        yield process, client
    finally:
        process.kill()
        process.communicate()
        client.close()


@pytest.fixture
def node(settings, text):
    with StubNode(Store.of(settings), text) as node:
        yield node


def stop(process) -> str:
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=20)
    return errors


def test_it_says_once_when_the_node_is_ready(api, node):
    """`honcho start` said nothing of the kind."""
    process, client = api
    said = [process.stdout.readline() for _ in range(3)]
    assert said[1].startswith(f"Lockstep is ready on {client.base_url} after ")
    assert said[2].startswith(f"curl {client.base_url}/v1/chat/completions ")
    assert "Authorization" not in said[2]
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=20)[0].strip() == ""


def test_it_ends_with_0_when_asked(api):
    process, _ = api
    assert "Traceback" not in stop(process)
    assert process.returncode == 0


def test_who_was_not_answered_when_it_ended_may_come_again(api, settings, wait_until):
    """Found by tests/chaos: 500, when the store was slow just then."""
    process, client = api
    redis, answers = Store.of(settings).redis, []

    def ask():
        answers.append(client.post("/v1/jobs", json={"prompt": "x"}))

    redis.execute_command("CLIENT", "PAUSE", "30000", "WRITE")
    try:
        asking = threading.Thread(target=ask)
        asking.start()
        wait_until(lambda: redis.info("clients")["blocked_clients"] > 0)
        assert "Traceback" not in stop(process)
    finally:
        redis.execute_command("CLIENT", "UNPAUSE")
    asking.join()
    assert (answers[0].status_code, answers[0].json()["error"]["code"]) == (503, "stopping")
    assert int(answers[0].headers["retry-after"]) > 0


def test_open_streams_are_let_go_and_their_requests_live(api, node, wait_until):
    """A client that comes back with the same id gets the answer."""
    process, client = api
    node.play = Play(pause_after=1)
    body = {"messages": HELLO, "id": "kept", "stream": True}
    with client.stream("POST", "/v1/chat/completions", json=body) as response:
        lines = response.iter_lines()
        while "Paris" not in next(lines):
            pass
        assert "Traceback" not in stop(process)
        rest = "\n".join(lines)
    assert process.returncode == 0
    assert "ask again with id 'kept'" in rest
    assert rest.rstrip().endswith("data: [DONE]")
    node.go.set()
    wait_until(lambda: node.store.job("kept")["status"] == "finished")


def test_a_stopped_api_leaves_event_streams_to_be_resumed(api, node):
    process, client = api
    node.play = Play(pause_after=1)
    client.post("/v1/jobs", json={"messages": HELLO, "id": "job"})
    with client.stream("GET", "/v1/jobs/job/events") as response:
        lines = response.iter_lines()
        assert next(lines) == "id: 0-1"
        stop(process)
        assert "event: end" not in list(lines)
    assert process.returncode == 0
    assert node.store.job("job")["status"] == "running"
