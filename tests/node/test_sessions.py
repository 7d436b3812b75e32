"""Conversations with a whole node: over HTTP, through restarts, kills and from pool to pool."""

import httpx
import pytest

from tests.node.running_node import wait_for

STORY = "Tell me about a lighthouse keeper and the sea. " * 16
TIMEOUT_S = 120


@pytest.fixture(scope="module")
def node(make_node):
    """Of its own, with two CPU engines: it is stopped and killed here."""
    return make_node(
        LOCKSTEP_GPU="cpu", LOCKSTEP_LEASE_S="5", LOCKSTEP_KV_MIB="200", LOCKSTEP_THREADS="1"
    )


def say(node, session, content, *, max_tokens=12):
    """One turn: only what is new is sent. The answer's text, and (prompt, cached) tokens."""
    answer = httpx.post(
        f"{node.url}/v1/chat/completions",
        headers={"X-Session-ID": session},
        json={
            "messages": [{"role": "user", "content": content}],
            "max_tokens": max_tokens,
            "temperature": 0,
        },
        timeout=TIMEOUT_S,
    )
    assert answer.status_code == 200, answer.text
    usage = answer.json()["usage"]
    text = answer.json()["choices"][0]["message"]["content"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return text, usage["prompt_tokens"], cached, usage["completion_tokens"]


def test_a_conversation_goes_on_through_a_restart_and_a_kill(node):
    say(node, "undisturbed", STORY)
    alone = [say(node, "undisturbed", f"Go on: {n}.")[0] for n in range(3)]

    _, prompt, _, output = say(node, "s", STORY)
    node.interrupt()
    node.start()
    text, prompt_2, cached, output_2 = say(node, "s", "Go on: 0.")
    assert (text, cached) == (alone[0], prompt + output - 1)

    wait_for(lambda: node.store.session("s").get("writing") == "", "written")
    node.kill_program("cpu")
    node.kill_program("gpu")
    wait_for(node.is_ready, "ready")
    text, _, cached, _ = say(node, "s", "Go on: 1.")
    assert (text, cached) == (alone[1], prompt_2 + output_2 - 1)
    assert say(node, "s", "Go on: 2.")[0] == alone[2]


def test_a_request_moves_to_the_other_pool_and_back(node):
    words = ["prompt", STORY, "max_tokens", "150", "temperature", "0.8", "seed", "3"]
    alone = node.end(node.add(*words))
    request_id = node.add(*words)
    wait_for(lambda: node.num_tokens(request_id) > 5, "tokens")
    first = node.store.job(request_id)["pool"]
    other = {"cpu": "gpu", "gpu": "cpu"}[first]
    assert node.store.move(request_id, other) == "moving"
    wait_for(lambda: node.store.job(request_id)["pool"] == other, "moved")
    job = node.end(request_id)
    assert (job["status"], job["pool"]) == ("finished", other)
    assert (job["text"], job["digest"]) == (alone["text"], alone["digest"])


def test_the_door_shows_and_forgets_a_session(node):
    say(node, "gone", "Hello")
    shown = httpx.get(f"{node.url}/v1/sessions/gone", timeout=TIMEOUT_S)
    assert shown.status_code == 200
    assert httpx.delete(f"{node.url}/v1/sessions/gone", timeout=TIMEOUT_S).status_code == 200
    assert httpx.get(f"{node.url}/v1/sessions/gone", timeout=TIMEOUT_S).status_code == 404
