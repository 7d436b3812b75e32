"""Three nodes whose store fails over in mid-load, by Sentinels: nothing accepted is lost."""

import time

import pytest

from tests.fleet.ha.servers import SentinelServers, wait_for
from workers.fleet.names import node_of
from workers.wire import TERMINAL

REQUESTS = 60


@pytest.fixture
def servers(tmp_path):
    sentinels = SentinelServers(tmp_path / "sentinels")
    yield sentinels
    sentinels.end()


def patiently(call):
    """Again and again, as a client does while a store fails over."""
    return wait_for(lambda: (call(),), "the store is back")[0]


@pytest.mark.slow
def test_three_nodes_follow_a_failover_and_lose_nothing(make_fleet, servers):
    fleet = make_fleet("a", "b", "c")
    prompts = [f"Fact number {n}:" for n in range(6)]
    calm = [fleet.end(fleet.add(prompt, max_tokens=100))["text"] for prompt in prompts]
    for n in range(REQUESTS):
        if n == REQUESTS // 3:
            servers.master().kill()
        patiently(lambda n=n: fleet.add(prompts[n % 6], max_tokens=100, id=f"f{n}"))
        time.sleep(0.02)
    wait_for(lambda: all(fleet.status(f"f{n}") in TERMINAL for n in range(REQUESTS)), "ends", 90)
    jobs = [fleet.store.job(f"f{n}") for n in range(REQUESTS)]
    assert [job["text"] for job in jobs] == [calm[n % 6] for n in range(REQUESTS)]
    for n in range(REQUESTS):
        fleet.check_once(f"f{n}")
    assert len({node_of(job["pool"]) for job in jobs}) > 1
