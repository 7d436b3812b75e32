"""Nodes of unequal memory: what is too large for its reader goes to a node that holds it."""

import pytest

from router.homing import Homes
from router.pools import Wanted
from workers.fleet.presence import NodeReport, Presence, longest, who_holds
from workers.sla import SlaTable
from workers.wire import Keys, PoolLoad
from workers.worker_store import WorkerStore

BLOCKS = {"a": 4, "b": 16, "c": 64}  # of 256 tokens


@pytest.fixture
def store(redis_url):
    for name, blocks in BLOCKS.items():
        store = WorkerStore(redis_url, Keys("f", node=name))
        Presence(store, "same", NodeReport(node=name, instance=name)).say(1.0, 256 * blocks)
        report(store, blocks)
    return WorkerStore(redis_url, Keys("f", node="a"))


def report(store, blocks, **says):
    load = {"state": "ready", "model": "m", "capacity": 4, "total_blocks": blocks} | says
    store.report(PoolLoad(pool=f"cpu@{store.keys.node}", worker="w", free_blocks=blocks, **load))


def wanted(tokens):
    return Wanted("r", "standard", 0, tokens - 10, 10)


def test_the_fleet_holds_what_its_largest_node_holds(store):
    assert longest(store) == 256 * 64
    assert who_holds(store, 1025) == ["b", "c"]
    assert who_holds(store, 256 * 64 + 1) == []


@pytest.mark.parametrize(("tokens", "pool"), [(1100, "cpu@b"), (4097, "cpu@c")])
def test_the_smallest_node_that_holds_it_gets_it(store, tokens, pool):
    plan = Homes(store, "m", SlaTable()).larger(wanted(tokens), 0)
    assert plan.pool == pool


def test_one_that_loads_is_passed_over_and_none_is_none(store):
    report(WorkerStore(store.url, Keys("f", node="b")), 16, state="loading")
    homes = Homes(store, "m", SlaTable())
    assert homes.larger(wanted(1100), 0).pool == "cpu@c"
    assert homes.larger(wanted(256 * 64 + 1), 0) is None


def test_what_a_gone_node_held_counts_no_longer(store):
    Presence(
        WorkerStore(store.url, Keys("f", node="c")), "same", NodeReport(node="c", instance="c")
    ).leave()
    assert longest(store) == 256 * 16
