"""Three nodes on one Valkey: they share the work, keep sessions at home, and replace each other."""

from collections import Counter

import pytest

from tests.node.running_node import wait_for
from workers.fleet.names import node_of


def test_a_killed_nodes_requests_end_once_with_the_same_tokens_elsewhere(make_fleet):
    fleet = make_fleet("a", "b", "c")
    prompts = [f"Fact number {n}:" for n in range(6)]
    alone = [fleet.end(fleet.add(prompt, max_tokens=60))["text"] for prompt in prompts]
    ids = [fleet.add(prompts[n % 6], max_tokens=60) for n in range(36)]

    def runs_at_b():
        jobs = [fleet.store.job(request_id) or {} for request_id in ids]
        return [j for j in jobs if j.get("pool") == "cpu@b" and j["status"] == "running"]

    wait_for(runs_at_b, "b runs some")
    fleet.nodes.pop("b").kill()
    jobs = [fleet.end(request_id) for request_id in ids]
    assert [job["text"] for job in jobs] == [alone[n % 6] for n in range(36)]
    for request_id in ids:
        fleet.check_once(request_id)
    taken = [job for job in jobs if "taken over, b is gone" in job["reason"]]
    assert taken and all(node_of(job["pool"]) in ("a", "c") for job in taken)
    assert {node_of(job["pool"]) for job in jobs} >= {"a", "c"}
    assert not fleet.redis.llen(fleet.keys.queue("cpu@b"))


@pytest.mark.slow
def test_sessions_stay_at_home_and_go_on_elsewhere_when_it_dies(make_fleet):
    fleet = make_fleet("a", "b", "c")
    names = [f"s{n}" for n in range(9)]
    homes, texts = {}, {}
    for turn in range(3):
        ids = {name: fleet.add(f"Turn {turn}: {name}", session_id=name) for name in names}
        for name, request_id in ids.items():
            job = fleet.end(request_id)
            assert job["status"] == "finished", job
            homes.setdefault(name, []).append(node_of(job["pool"]))
            texts.setdefault(name, []).append(job["text"])
    at_home = [home == visited[0] for visited in homes.values() for home in visited[1:]]
    assert sum(at_home) / len(at_home) >= 0.95
    assert len({visited[0] for visited in homes.values()}) > 1, "all sessions at one node"

    dead = Counter(visited[0] for visited in homes.values()).most_common(1)[0][0]
    lost = [name for name in names if homes[name][-1] == dead]
    fleet.nodes.pop(dead).kill()
    for name in lost:
        job = fleet.end(fleet.add("and then", session_id=name))
        assert job["status"] == "finished", job
        assert node_of(job["pool"]) != dead
        # the whole conversation at once, as a new session has it, says the same
        again = f"again-{name}"
        for turn in range(3):
            told = fleet.end(fleet.add(f"Turn {turn}: {name}", session_id=again))["text"]
            assert told == texts[name][turn]
        assert fleet.end(fleet.add("and then", session_id=again))["text"] == job["text"]


@pytest.mark.slow
def test_what_waits_for_a_killed_pool_beside_a_router_that_lives_ends_elsewhere(
    make_fleet,
):
    """Its router lives, so it is not gone; nobody starts the pool again."""
    fleet = make_fleet("a", "b")
    prompts = [f"Fact number {n}:" for n in range(6)]
    alone = [fleet.end(fleet.add(prompt, max_tokens=60))["text"] for prompt in prompts]
    ids = [fleet.add(prompts[n % 6], max_tokens=60) for n in range(24)]

    def waits_at_b():
        return fleet.redis.llen(fleet.keys.queue("cpu@b"))

    wait_for(waits_at_b, "some wait at b")
    pool = fleet.nodes["b"].processes.pop("cpu")
    pool.kill()
    pool.wait(30)
    jobs = [fleet.end(request_id) for request_id in ids]
    assert [job["text"] for job in jobs] == [alone[n % 6] for n in range(24)]
    for request_id in ids:
        fleet.check_once(request_id)
    assert any("cpu@b is away" in job["reason"] for job in jobs)
