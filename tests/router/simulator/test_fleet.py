"""A small simulated fleet: nothing is lost, work follows speed, conversations come home."""

import pytest

from router.simulator.clock import Clock
from router.simulator.fleet.fleet import Fleet
from router.simulator.fleet.load import SHARES, Case
from router.simulator.fleet.study import balance, percentiles, simulate
from router.simulator.job import FINISHED
from router.simulator.workload import Wish, load_workloads

_, TABLE = load_workloads()
SMALL = Case(both=4, small=2, sessions=2000, part=0.5, seconds=40)


@pytest.fixture(scope="module")
def found():
    return simulate(SMALL, TABLE)


def test_whatever_comes_ends_once_and_the_same_seed_gives_the_same(found):
    again = simulate(SMALL, TABLE)
    assert (found.lost, found.refused, found.requests) == (0, 0, again.requests)
    assert (found.claim_ms, found.work) == (again.claim_ms, again.work)


def test_equal_nodes_do_equal_work(found):
    """Nodes of the two kinds are told apart by their speed."""
    fast = [part for name, part in balance(found).items() if found.speed[name] > 1]
    assert len(fast) == SMALL.both and max(fast) < 1.25 and min(fast) > 0.75


def test_conversations_come_home(found):
    assert found.later > 50 and found.at_home >= 0.95 * found.later


def test_a_message_is_read_at_once_while_some_router_waits(found):
    assert all(percentiles(waits)[0] == 0.0 for waits in found.read_ms.values())


def test_what_a_dead_node_had_ends_elsewhere_once():
    clock, ended = Clock(), []
    case = Case(both=3, small=0, sessions=500, part=0.7, seconds=20)
    fleet = Fleet(case.hardware(), TABLE, clock, lambda job, node: None)
    for node in fleet.nodes:
        node.on_end = ended.append
    fleet.closes_ms = 1000 * case.seconds
    fleet.expect(case.wishes(sum(node.speed for node in fleet.nodes)))
    left = []
    clock.at(
        500 * case.seconds, lambda: (fleet.kill("n1"), left.extend(fleet.nodes[1].left_behind()))
    )
    clock.run()
    assert left and len(ended) == fleet.num_arrived == len({job.id for job in ended})
    assert all(job.state == FINISHED and job.made == job.wish.output for job in ended)
    assert {node_of_end(job) for job in ended if job in left} <= {"n0", "n2"}


def node_of_end(job) -> str:
    return job.pool.partition("@")[2]


def test_a_request_that_only_another_node_promises_goes_home():
    """The slow node would have taken it, were it not for its session."""
    clock = Clock()
    fleet = Fleet(Case(both=1, small=1).hardware(), TABLE, clock)
    fleet.homes["s"] = (next(iter(fleet.node_of("gpu@n0").pools)), 700)
    waits = fleet.by_name["n1"]
    clock.run(1.0)
    fleet.waiting.move_to_end(fleet.by_name["n0"])
    assert next(iter(fleet.waiting)) is waits
    fleet.arrive(Wish("s-1", "standard", 0.0, 800, 4, 8, session="s", history=700))
    clock.run(50.0)
    assert [job.id for job in fleet.by_name["n0"].jobs.values()] == ["s-1"]


def test_the_load_is_drawn_by_a_seed():
    first = SMALL.wishes(10.0)
    assert first == SMALL.wishes(10.0) and {wish.sla for wish in first} == set(TABLE.names)
    assert sum(SHARES.values()) == pytest.approx(1)
    asked = sum(1 + len(wish.turns) for wish in first)
    assert asked == pytest.approx(10.0 * SMALL.part * SMALL.seconds, rel=0.25)
