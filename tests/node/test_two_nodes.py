"""Two nodes on one store: they share the work, and one takes over what the other leaves."""

import pytest

from tests.node.running_node import wait_for


@pytest.fixture(scope="module")
def second(make_node, node):
    return make_node(LOCKSTEP_REDIS_URL=node.store.url, LOCKSTEP_LEASE_S="5")


def words(number):
    prompt = f"Fact number {number}:"
    return ["prompt", prompt, "max_tokens", "40", "temperature", "0.8", "seed", "3"]


def test_both_run_requests_and_say_the_same(node, second):
    texts = [node.end(node.add(*words(n)))["text"] for n in range(4)]
    ids = [node.add(*words(n % 4)) for n in range(40)]
    jobs = [node.end(request_id) for request_id in ids]
    assert [job["text"] for job in jobs] == texts * 10
    assert len({job["worker"] for job in jobs}) == 2


def test_what_a_killed_node_ran_goes_on_at_the_other(node, second):
    alone = node.end(node.add(*words(7)))["text"]
    ids = [node.add(*words(7)) for _ in range(32)]
    wait_for(lambda: any(node.num_tokens(request_id) > 3 for request_id in ids), "tokens")
    second.kill()
    jobs = [node.end(request_id) for request_id in ids]
    assert {(job["status"], job["text"]) for job in jobs} == {("finished", alone)}
