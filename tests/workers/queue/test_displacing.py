"""A full pool claims what is more urgent than what it runs, and no more than makes way for it."""

import pytest

from workers.queue.displacing import room_beyond
from workers.sla import SlaTable

TABLE = SlaTable()


@pytest.mark.parametrize(
    ("held", "beyond"),
    [
        ([], {}),
        (["batch", "batch"], {"realtime": 2, "standard": 2}),
        (["batch", "standard"], {"realtime": 2, "standard": 1}),
        (["realtime", "realtime"], {}),
        (["batch", "batch", "realtime"], {"realtime": 1, "standard": 1}),
        (["batch", "standard", "realtime"], {"realtime": 1}),
        (["batch", "batch", "realtime", "realtime"], {}),
    ],
)
def test_each_less_urgent_one_that_has_its_place_makes_way_for_one(held, beyond):
    assert room_beyond(held, 2, TABLE) == beyond


def ids(items):
    return [item.job_id for item in items]


def test_without_room_only_what_others_make_way_for_is_taken(node):
    for number, sla in enumerate(("batch", "standard", "realtime", "realtime", "realtime")):
        node.route(f"r{number}", sla=sla)
    taken = node.store.claim("cpu", "w1", 0, extra={"realtime": 2})
    assert ids(taken) == ["r2", "r3"]
    assert sorted(node.queue()) == ["r0", "r1", "r4"]
    assert node.store.claim("cpu", "w1", 0) == []


def test_room_comes_first_and_what_makes_way_after_it(node):
    for number, sla in enumerate(("batch", "batch", "realtime")):
        node.route(f"r{number}", sla=sla)
    front = node.queue()[0]
    taken = ids(node.store.claim("cpu", "w1", 1, extra={"realtime": 1}))
    assert taken[0] == front
    assert sorted(taken)[-1] == "r2"


def test_a_promoted_one_is_what_it_is_now(node):
    node.route("r0", sla="batch")
    assert node.store.claim("cpu", "w1", 0, extra={"realtime": 1}) == []
    node.store.promote("r0", "realtime")
    [item] = node.store.claim("cpu", "w1", 0, extra={"realtime": 1})
    assert (item.job_id, item.request.sla) == ("r0", "realtime")
