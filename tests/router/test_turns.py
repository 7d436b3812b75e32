"""Requests are placed 8 : 3 : 1, whatever the room is at each time."""

from collections import Counter

import pytest

from router.turns import Turns
from workers.sla import SlaTable

TABLE = SlaTable()
MANY = dict.fromkeys(TABLE.names, 100)
NONE = dict.fromkeys(TABLE.names, 0)


def served(turns, room, waiting=MANY):
    """As many as there is room for get their turn."""
    order = turns.order(waiting)[:room]
    for sla in order:
        turns.served(sla)
    return Counter(order)


@pytest.mark.parametrize("room", [1, 2, 5, 12, 100])
def test_all_classes_get_their_share_over_time(room):
    turns, total = Turns(TABLE), Counter()
    while sum(total.values()) < 1200:
        total += served(turns, room)
    assert total == pytest.approx({"realtime": 800, "standard": 300, "batch": 100}, abs=room)


def test_what_others_do_not_need_is_given_away():
    assert served(Turns(TABLE), 20, {**NONE, "batch": 50}) == {"batch": 20}
    assert served(Turns(TABLE), 20, {**NONE, "batch": 3, "realtime": 2}) == {
        "batch": 3,
        "realtime": 2,
    }


def test_who_finds_no_place_loses_no_turn():
    turns = Turns(TABLE)
    turns.order(MANY)
    turns.served("batch")
    assert turns.order({**NONE, "batch": 1, "standard": 1}) == ["standard", "batch"]


def test_the_most_urgent_is_first():
    assert Turns(TABLE).order(MANY)[0] == "realtime"
    assert Turns(TABLE).order(NONE) == []


def test_a_class_that_was_empty_saved_up_no_turns():
    turns = Turns(TABLE)
    served(turns, 1000, {**NONE, "realtime": 1000})
    assert served(turns, 12)["realtime"] >= 7
    served(turns, 1000, {**NONE, "batch": 1000})
    assert served(turns, 12)["batch"] <= 2


def test_batch_is_never_starved():
    turns = Turns(TABLE)
    assert sum(served(turns, 1)["batch"] for _ in range(24)) == 2


def test_a_class_of_the_settings_takes_turns_by_its_weight():
    table = SlaTable.of({"batch": {"weight": 2}, "nightly": {"like": "batch", "weight": 1}})
    total = served(Turns(table), 1400, dict.fromkeys(table.names, 10_000))
    assert total == pytest.approx(
        {"realtime": 800, "standard": 300, "batch": 200, "nightly": 100}, abs=1
    )
