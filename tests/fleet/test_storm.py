"""Routers and pools of three nodes are killed at random and come back, or stay away for a while."""

import random
import time
from threading import Event, Thread

import pytest

from tests.node.running_node import wait_for
from workers.wire import TERMINAL

PROMPTS = [f"Fact number {n}:" for n in range(6)]
REQUESTS, SESSIONS, TURNS = 72, 5, 4
LONGEST_S = 6.0  # a node stays away for: two leases


def kill_and_start(fleet, chance, stopping):
    """One program or one whole node at a time."""
    while not stopping.wait(chance.uniform(0.3, 1.5)):
        node = chance.choice(list(fleet.nodes.values()))
        names = chance.choice([["router"], ["cpu"], ["router", "cpu"]])
        for name in names:
            node.processes[name].kill()
            node.processes[name].wait(30)
        stopping.wait(chance.uniform(0, LONGEST_S))
        node.start(*names)


def turn_of_all(fleet, turn):
    """One turn of each session, all at once; the next one comes when it has ended."""
    ids = [fleet.add(f"turn {turn}", session_id=f"s{s}", max_tokens=40) for s in range(SESSIONS)]
    wait_for(lambda: all(fleet.status(i) in TERMINAL for i in ids), f"turn {turn}", 180)
    return ids


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_whatever_is_killed_each_request_ends_once_with_its_tokens(make_fleet, seed):
    fleet, chance, stopping = make_fleet("a", "b", "c"), random.Random(seed), Event()
    calm = [fleet.end(fleet.add(prompt, max_tokens=60))["text"] for prompt in PROMPTS]
    talks = [
        fleet.end(fleet.add(f"turn {n}", session_id="calm", max_tokens=40))["text"]
        for n in range(TURNS)
    ]
    storm = Thread(target=kill_and_start, args=(fleet, chance, stopping))
    storm.start()
    try:
        ids = []
        for n in range(REQUESTS):
            ids.append(fleet.add(PROMPTS[n % 6], max_tokens=60))
            time.sleep(chance.uniform(0, 0.3))
        turns = [one for n in range(TURNS) for one in turn_of_all(fleet, n)]
        wait_for(lambda: all(fleet.status(i) in TERMINAL for i in ids), "ends", 180)
    finally:
        stopping.set()
        storm.join()
    for request_id in ids + turns:
        fleet.check_once(request_id)
    assert [fleet.store.job(i)["text"] for i in ids] == [calm[n % 6] for n in range(REQUESTS)]
    jobs = [fleet.store.job(i) for i in turns]
    assert [job["text"] for job in jobs] == [text for text in talks for _ in range(SESSIONS)], [
        (job["status"], job.get("code"), job.get("error")) for job in jobs
    ]
