"""kill -9 of one part while requests are under way: each finishes, once, with the same text."""

import httpx
import pytest

from tests.node.running_node import wait_for

LENGTHS = (120, 90, 60)


def fields(number, **more):
    return {
        "prompt": f"Story number {number}: once upon a time",
        "max_tokens": LENGTHS[number],
        "temperature": 0.8,
        "seed": number,
        **more,
    }


@pytest.fixture(scope="module")
def undisturbed(node) -> list[tuple[list[int], str, str]]:
    """Token ids, text and digest of each request, when nothing happens."""
    ids = [submit(node, number) for number in range(len(LENGTHS))]
    return [finished_once(node, request_id) for request_id in ids]


def submit(node, number, **more) -> str:
    words = [str(part) for pair in fields(number, **more).items() for part in pair]
    return node.add(*words)


def finished_once(node, request_id):
    """What the journal holds of a request that finished; the job says the same.

    The digest is over the bits of all logits: after a kill they are the same, too.
    """
    job = node.end(request_id)
    assert job["status"] == "finished", job
    token_ids, text = node.journalled(request_id)
    assert (job["text"], job["output_tokens"]) == (text, len(token_ids))
    return token_ids, text, job["digest"]


def webhooks_of(receiver, ids):
    """webhook-ids by request: a delivery may be repeated, and then has the same id."""
    wait_for(lambda: all(receiver.of(request_id) for request_id in ids), "webhooks")
    return [{webhook_id for webhook_id, _ in receiver.of(request_id)} for request_id in ids]


def test_the_cpu_pool_is_killed_in_mid_generation(node, receiver, undisturbed):
    ids = [submit(node, n, webhook_url=receiver.url) for n in range(len(LENGTHS))]
    wait_for(lambda: all(node.num_tokens(request_id) > 5 for request_id in ids), "tokens")
    node.kill_program("cpu")
    assert any(node.num_tokens(request_id) < 60 for request_id in ids), "killed too late"
    assert [finished_once(node, request_id) for request_id in ids] == undisturbed
    assert all(len(webhook_ids) == 1 for webhook_ids in webhooks_of(receiver, ids))


def test_the_router_is_killed_while_requests_arrive(node, undisturbed):
    ids = []
    for n in range(len(LENGTHS)):
        ids.append(submit(node, n))
        node.program("router").kill()
        ids.append(submit(node, n))
    ends = [finished_once(node, request_id) for request_id in ids]
    assert ends == [end for end in undisturbed for _ in range(2)]


def test_the_api_is_killed_while_its_jobs_run(node, undisturbed):
    ids = []
    for n in range(len(LENGTHS)):
        answer = httpx.post(f"{node.url}/v1/jobs", json=fields(n))
        assert answer.status_code == 202
        ids.append(answer.json()["id"])
    node.kill_program("api")
    assert [finished_once(node, request_id) for request_id in ids] == undisturbed
    wait_for(node.is_ready, "ready again")
    assert httpx.get(f"{node.url}/v1/jobs/{ids[0]}").json()["text"] == undisturbed[0][1]


def test_the_store_is_killed_in_mid_generation(node, undisturbed):
    ids = [submit(node, n) for n in range(len(LENGTHS))]
    wait_for(lambda: all(node.num_tokens(request_id) > 5 for request_id in ids), "tokens")
    node.kill_program("store")
    wait_for(node.is_ready, "ready again")
    assert [finished_once(node, request_id) for request_id in ids] == undisturbed


def test_the_webhook_worker_is_killed_while_webhooks_go_out(node, receiver):
    ids = [
        node.add("prompt", "Hi", "max_tokens", "2", "webhook_url", receiver.url) for _ in range(20)
    ]
    wait_for(lambda: any(receiver.of(request_id) for request_id in ids), "a first webhook")
    node.kill_program("webhooks")
    assert all(len(webhook_ids) == 1 for webhook_ids in webhooks_of(receiver, ids))
