"""The store's master dies, hangs or is taken away in mid-load, on a Cluster and under Sentinels.

Each test: a node works for all doors at once, something happens to its store, it works on. Every
request that was accepted ends once, with the tokens of a calm run. make test-fleet runs them.
"""

import json
import os
import time

import pytest
from redis.exceptions import ResponseError

from ingest.client import Client
from tests.fleet.ha.load import TURNS, Load, converse
from tests.fleet.ha.servers import MASTER, SLOT, ClusterServers, SentinelServers, wait_for
from workers.settings import settings

pytestmark = pytest.mark.slow
KINDS = {"cluster": lambda folder: ClusterServers(folder, replicas=2), "sentinel": SentinelServers}
BEFORE_S, AFTER_S = 2.0, 5.0  # of load


@pytest.fixture(params=KINDS)
def servers(request, tmp_path):
    servers = KINDS[request.param](tmp_path)
    yield servers
    servers.end()


@pytest.fixture
def load(request, servers, make_node, receiver, monkeypatch):
    replicas = getattr(request, "param", 1)
    node = make_node(servers, LOCKSTEP_REDIS_REPLICAS=str(replicas))
    for name in ("HOME", "REDIS_URL", "KEY_PREFIX", "REDIS_REPLICAS"):
        monkeypatch.setenv(f"LOCKSTEP_{name}", node.environment[f"LOCKSTEP_{name}"])
    settings.cache_clear()
    load = Load(node, Client(), receiver)
    load.learn()
    yield load
    load.stopping.set()
    settings.cache_clear()
    node.kill()


def another(servers, old):
    """Whoever is the master instead of the old one."""
    return wait_for(lambda: (now := servers.master()) is not old and now, "another master")


def kill(servers):
    old = servers.master()
    old.kill()
    another(servers, old)


def kill_and_bring_back(servers):
    """The old master has what its AOF had, believes that it is the master, and is told better."""
    old = servers.master()
    old.kill()
    another(servers, old)
    old.start()


def hang(servers):
    """It says nothing, and its connections stay; later it goes on as if nothing had been."""
    old = servers.master()
    old.hang()
    another(servers, old)
    time.sleep(AFTER_S)
    old.go_on()


def hand_over(servers):
    """As before an upgrade of the server: nobody dies, and the old one waits for the new one."""
    old = servers.master()
    if isinstance(servers, ClusterServers):
        servers.all[3].redis.execute_command("CLUSTER FAILOVER")
    else:
        command = ("SENTINEL", "FAILOVER", MASTER, "COORDINATED")
        try:
            servers.sentinels[0].redis.execute_command(*command)
        except ResponseError as error:
            pytest.skip(f"not with this server: {error}")
    another(servers, old)


def move_the_slot(servers):
    """To another master, as when a Cluster grows."""
    old = servers.master()
    new = next(server for server in servers.all[:3] if server is not old)
    name = new.redis.execute_command("CLUSTER MYID")
    command = ("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", SLOT, SLOT, "NODE", name)
    try:
        old.redis.execute_command(*command)
    except ResponseError as error:
        pytest.skip(f"not with this server: {error}")
    another(servers, old)


def promote_another(servers):
    """The Sentinels' plain way: for a while there are two masters, and one of them will forget."""
    old = servers.master()
    servers.sentinels[0].redis.execute_command("SENTINEL", "FAILOVER", MASTER)
    another(servers, old)


@pytest.mark.parametrize("what", [kill, kill_and_bring_back, hang, hand_over])
def test_nothing_that_was_accepted_is_lost(servers, load, what):
    ride_out(servers, load, what)


@pytest.mark.parametrize("servers", ["sentinel"], indirect=True)
@pytest.mark.parametrize("load", [2], indirect=True)
def test_both_replicas_must_have_it_where_two_masters_may_be_at_once(servers, load):
    ride_out(servers, load, promote_another)


@pytest.mark.parametrize("servers", ["cluster"], indirect=True)
@pytest.mark.parametrize("load", [0], indirect=True)
def test_the_slot_may_move_to_another_master(servers, load):
    """One without replicas here, so that none is asked for."""
    ride_out(servers, load, move_the_slot)


def ride_out(servers, load, what):
    load.start()
    time.sleep(BEFORE_S)
    began = time.monotonic()
    what(servers)
    elected_s = time.monotonic() - began
    time.sleep(AFTER_S)
    until = time.monotonic()
    load.stop()
    load.check()
    told = {
        "servers": type(servers).__name__,
        "what": what.__name__,
        "accepted": len(load.accepted) + len(load.streamed_s),
        "asked_again": len(load.refused),
        "elected_s": round(elected_s, 2),
        "nothing_taken_s": round(load.gap_s(began, until), 2),
        "longest_stream_s": round(max(load.streamed_s), 2),
        "all_ended_s": round(load.all_ended_s(until), 2),
    }
    print(json.dumps(told))
    if path := os.environ.get("FLEET_FIGURES"):
        with open(path, "a") as file:
            file.write(json.dumps(told) + "\n")


def test_a_conversation_goes_on_over_a_failover(servers, load):
    calm = [converse(load.node, "calm", turn) for turn in TURNS]
    storm = []
    for number, turn in enumerate(TURNS):
        if number == 3:
            servers.master().kill()
        storm.append(converse(load.node, "storm", turn))
    assert storm == calm
    assert int(load.node.store.session("storm")["fence"]) >= len(TURNS)
