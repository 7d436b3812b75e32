"""Reads are shared 8 : 3 : 1, whatever the room is at each time."""

import pytest

from router.turns import Turns
from workers.sla import SlaTable

TABLE = SlaTable()
MANY = dict.fromkeys(TABLE.names, 10_000)
NONE = dict.fromkeys(TABLE.names, 0)


@pytest.mark.parametrize("room", [1, 2, 5, 12, 100])
def test_all_classes_get_their_share_over_time(room):
    turns, total = Turns(TABLE), dict.fromkeys(TABLE.names, 0)
    while sum(total.values()) < 1200:
        for sla, count in turns.share(room, MANY).items():
            total[sla] += count
    assert total == pytest.approx({"realtime": 800, "standard": 300, "batch": 100}, abs=room)


def test_what_others_do_not_need_is_given_away():
    assert Turns(TABLE).share(20, {**NONE, "batch": 50}) == {**NONE, "batch": 20}
    assert Turns(TABLE).share(20, {**NONE, "batch": 3, "realtime": 2}) == {
        **NONE,
        "batch": 3,
        "realtime": 2,
    }


def test_no_more_is_read_than_there_is_room_for():
    assert sum(Turns(TABLE).share(7, MANY).values()) == 7
    assert Turns(TABLE).share(0, MANY) == NONE
    assert Turns(TABLE).share(-3, MANY) == NONE
    assert Turns(TABLE).share(5, NONE) == NONE


def test_the_most_urgent_is_first():
    assert Turns(TABLE).share(1, MANY) == {**NONE, "realtime": 1}


def test_a_class_that_was_empty_saved_up_no_turns():
    turns = Turns(TABLE)
    turns.share(1000, {**NONE, "realtime": 1000})
    assert turns.share(12, MANY)["realtime"] >= 7
    turns.share(1000, {**NONE, "batch": 1000})
    assert turns.share(12, MANY)["batch"] <= 2


def test_batch_is_never_starved():
    turns, read = Turns(TABLE), 0
    for _ in range(24):
        read += turns.share(1, MANY)["batch"]
    assert read == 2


def test_a_class_of_the_settings_takes_turns_by_its_weight():
    table = SlaTable.of({"batch": {"weight": 2}, "nightly": {"like": "batch", "weight": 1}})
    turns, many = Turns(table), dict.fromkeys(table.names, 10_000)
    assert turns.share(1400, many) == pytest.approx(
        {"realtime": 800, "standard": 300, "batch": 200, "nightly": 100}, abs=1
    )
