"""Work follows capability: each router takes what its pools have room for, and no more."""

from collections import Counter

import pytest

from tests.node.running_node import wait_for
from workers.fleet.names import node_of

PLACES = {"a": 2, "b": 4, "c": 8}  # of pools that compute nothing, all at the same pace
STEP_S = 0.05


def shares_of(fleet, requests, tokens):
    """What each node did of this load, beside what it is able to do: 1.0 is as much."""
    for name, places in PLACES.items():
        fleet.nodes[name].start_fake(places, STEP_S)
    fleet.await_ready()
    ids = [fleet.add(f"n {n}", max_tokens=tokens) for n in range(requests)]
    jobs = [fleet.end(request_id) for request_id in ids]
    assert {job["status"] for job in jobs} == {"finished"}
    done, able = Counter(node_of(job["pool"]) for job in jobs), sum(PLACES.values())
    return {name: done[name] / requests * able / places for name, places in PLACES.items()}


@pytest.mark.slow
def test_under_load_each_does_what_it_can_within_15_percent(make_fleet):
    shares = shares_of(make_fleet(*PLACES, start=False), 700, 8)
    assert all(0.85 <= share <= 1.15 for share in shares.values()), shares


@pytest.mark.slow
def test_a_node_of_other_weights_is_named_and_answers_nothing(make_fleet, other_model):
    fleet = make_fleet("a", "b", start=False)
    fleet.nodes["a"].start()
    wait_for(fleet.nodes["a"].is_ready, "a", 60)
    stranger = fleet.nodes["b"]
    (stranger.home / "models" / "tiny_llama").unlink()
    (stranger.home / "models" / "tiny_llama").symlink_to(other_model)
    stranger.start()
    wait_for(stranger.is_ready, "b", 60)
    jobs = [fleet.end(fleet.add(f"n {n}", max_tokens=8)) for n in range(12)]
    assert {node_of(job["pool"]) for job in jobs} == {"a"}
    assert "digest of weights" in stranger.log.read_text()
