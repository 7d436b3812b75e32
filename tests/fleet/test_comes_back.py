"""Nodes that hang and wake up again, and a store that begins anew: nothing ends twice."""

import os
import signal
import time

import pytest

from tests.fleet.nodes import LEASE_S, MODEL, FleetNode
from tests.node.running_node import wait_for
from workers.fleet.presence import nodes

PROMPTS = [f"Fact number {n}:" for n in range(6)]


def signal_all(node, number):
    for process in node.processes.values():
        os.kill(process.pid, number)


def take_part(fleet):
    """Nodes that do, and were heard just now."""
    seen = [node for node in nodes(fleet.store) if node.silent_s < LEASE_S]
    return {node.report.node for node in seen if not node.report.refused}


@pytest.mark.slow
def test_a_node_that_sleeps_longer_than_its_leases_says_nothing_twice(make_fleet):
    fleet = make_fleet("a", "b")
    calm = [fleet.end(fleet.add(prompt, max_tokens=90))["text"] for prompt in PROMPTS]
    ids = [fleet.add(PROMPTS[n % 6], max_tokens=90) for n in range(30)]
    talk = [fleet.add(f"turn {n}", session_id="s", max_tokens=30) for n in range(4)]
    b = fleet.nodes["b"]
    wait_for(
        lambda: any(fleet.store.job(i).get("pool") == "cpu@b" for i in ids if fleet.store.job(i)),
        "b",
    )
    for _ in range(2):
        signal_all(b, signal.SIGSTOP)
        time.sleep(2 * LEASE_S)
        signal_all(b, signal.SIGCONT)
        time.sleep(1.0)
    jobs = [fleet.end(request_id) for request_id in ids + talk]
    assert [job["text"] for job in jobs[:30]] == [calm[n % 6] for n in range(30)]
    for request_id in ids + talk:
        fleet.check_once(request_id)
    wait_for(
        lambda: all(n.silent_s < 2 and not n.report.refused for n in nodes(fleet.store)), "b", 20
    )
    more = [fleet.end(fleet.add(PROMPTS[n % 6], max_tokens=90)) for n in range(24)]
    assert {job["status"] for job in more} == {"finished"}


@pytest.mark.slow
def test_a_fleet_goes_on_with_a_store_that_has_lost_everything(make_fleet):
    fleet = make_fleet("a", "b")
    calm = [fleet.end(fleet.add(prompt, max_tokens=60))["text"] for prompt in PROMPTS]
    [fleet.add(prompt, max_tokens=90) for prompt in PROMPTS]
    fleet.redis.flushall()
    ids = [fleet.add(PROMPTS[n % 6], max_tokens=60) for n in range(24)]
    jobs = [fleet.end(request_id) for request_id in ids]
    assert [job["text"] for job in jobs] == [calm[n % 6] for n in range(24)]
    wait_for(lambda: take_part(fleet) == {"a", "b"}, "both", 20)


@pytest.mark.slow
def test_a_second_home_under_a_name_is_refused_and_the_first_one_goes_on(make_fleet, tmp_path):
    fleet = make_fleet("a")
    second = FleetNode(fleet.store.url, tmp_path / "second", "a", prefix=fleet.keys.prefix)
    second.start()
    try:
        wait_for(lambda: "is called 'a', too" in second.log.read_text(), "refused", 60)
        ids = [fleet.add(PROMPTS[n % 6], max_tokens=30) for n in range(12)]
        talk = [fleet.end(fleet.add(f"turn {n}", session_id="s", max_tokens=20)) for n in range(4)]
        assert {job["status"] for job in talk} == {"finished"}, talk
        for request_id in ids:
            assert fleet.end(request_id)["status"] == "finished"
            fleet.check_once(request_id)
    finally:
        second.kill()
    talk = [fleet.end(fleet.add(f"turn {n}", session_id="s", max_tokens=20)) for n in range(2)]
    assert {job["status"] for job in talk} == {"finished"}, talk


@pytest.mark.slow
def test_what_waits_at_a_node_that_comes_back_with_other_weights_gets_the_fleets_tokens(
    make_fleet, other_model
):
    fleet = make_fleet("a", "b")
    calm = [fleet.end(fleet.add(prompt, max_tokens=60))["text"] for prompt in PROMPTS]
    ids = [fleet.add(PROMPTS[n % 6], max_tokens=60) for n in range(30)]
    b = fleet.nodes["b"]
    wait_for(lambda: fleet.redis.llen(fleet.keys.queue("cpu@b")), "some wait at b")
    b.kill()
    (b.home / "models" / MODEL).unlink()
    (b.home / "models" / MODEL).symlink_to(other_model)
    b.start()
    jobs = [fleet.end(request_id) for request_id in ids]
    assert [job["text"] for job in jobs] == [calm[n % 6] for n in range(30)], {
        (job["status"], job.get("code"), job["pool"]) for job in jobs
    }
    for request_id in ids:
        fleet.check_once(request_id)
