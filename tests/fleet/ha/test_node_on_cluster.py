"""A whole node on a Cluster of three masters: all of its programs, through each of its doors."""

import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from ingest.client import Client
from ingest.command.doctor.app import running_node
from tests.node.running_node import wait_for
from workers.settings import Settings, settings

TIMEOUT_S = 120
ASKED = {"prompt": "Once upon a time", "max_tokens": 12, "temperature": 0}


@pytest.fixture(scope="module")
def node(make_node, cluster):
    return make_node(cluster)


@pytest.fixture
def client(node, monkeypatch):
    for name in ("LOCKSTEP_HOME", "LOCKSTEP_REDIS_URL", "LOCKSTEP_KEY_PREFIX"):
        monkeypatch.setenv(name, node.environment[name])
    settings.cache_clear()
    yield Client()
    settings.cache_clear()


def ended(node, path, **fields):
    answer = httpx.post(f"{node.url}{path}", json=fields, timeout=TIMEOUT_S)
    assert answer.status_code in (200, 202), answer.text
    return answer.json()


def test_a_request_by_stream_and_one_by_http_are_answered_alike(node, client):
    request_id = client.enqueue(**ASKED)
    *tokens, end = client.stream(request_id, timeout_s=TIMEOUT_S)
    assert (end.status, len(tokens)) == ("finished", 12)
    answer = ended(node, "/v1/completions", **ASKED)
    assert answer["choices"][0]["text"] == client.result(request_id).text
    with httpx.stream(
        "POST", f"{node.url}/v1/completions", json={**ASKED, "stream": True}, timeout=TIMEOUT_S
    ) as told:
        lines = [line for line in told.iter_lines() if line.startswith("data: ")]
    assert len(lines) >= 12 and lines[-1] == "data: [DONE]"


def test_a_conversation_a_webhook_and_a_cancellation(node, client, receiver):
    turn = {"max_tokens": 8, "temperature": 0, "session_id": "talk"}
    hook = {"webhook": {"url": receiver.url, "events": ["finished"]}}
    for words in ("Hello", "And then?"):
        messages = [{"role": "user", "content": words}]
        request_id = client.enqueue(messages=messages, **turn, **hook)
        assert client.result(request_id, timeout_s=TIMEOUT_S).status == "finished"
        assert wait_for(lambda r=request_id: receiver.of(r), "webhook")
    assert node.store.session("talk")["fence"] == 2
    long = ended(node, "/v1/jobs", **{**ASKED, "max_tokens": 2000, "stop": [], "sla": "batch"})[
        "id"
    ]
    wait_for(lambda: node.num_tokens(long) > 0, "it runs")
    assert client.cancel(long) in ("cancelling", "cancelled")
    assert node.end(long)["status"] == "cancelled"


def test_rq_and_doctor_see_the_node(node):
    environment = node.environment | {"RQ_KEY_PREFIX": node.store.keys.rq_prefix}
    tools = Path(sys.executable).parent
    command = [tools / "rq", "info", "--raw", "--url", node.store.url]
    command += ["--connection-class", "workers.master.client.StoreRedis"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and "worker " in done.stdout and "-cpu-" in done.stdout
    told = {"home": node.home, "redis_url": node.store.url, "key_prefix": node.store.keys.prefix}
    found = running_node(Settings(**told, port=int(node.url.rpartition(":")[2])))
    assert {one.name for one in found if not one.is_good} == {
        "store-no-replica",
        "store-writes-alone",
    }


def test_all_keys_lie_in_one_slot(node, cluster):
    """What lies elsewhere would have been written by a client of its own making."""
    keys = {server.port: server.redis.dbsize() for server in cluster.all}
    assert keys.pop(cluster.master().port) > 0 and set(keys.values()) == {0}
