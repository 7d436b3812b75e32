"""When the next attempt comes: a table, spread by a draw, ended after about 75 hours."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.settings import Settings
from workers.webhook.schedule import JITTER, delay_s, parse_schedule

SCHEDULE = parse_schedule(Settings.model_fields["webhook_retries"].default)


def test_the_configured_schedule_is_ten_attempts_in_about_75_hours():
    assert len(SCHEDULE) == 9
    assert 74 < sum(SCHEDULE) / 3600 < 77


@pytest.mark.parametrize("tries", range(1, 10))
@pytest.mark.parametrize(("draw", "factor"), [(0.0, 0.5), (0.5, 1.0), (1.0, 1.5)])
def test_a_delay_lies_around_its_entry(tries, draw, factor):
    assert delay_s(tries, SCHEDULE, draw=lambda: draw) == SCHEDULE[tries - 1] * factor


def test_after_the_last_entry_there_is_no_more():
    assert delay_s(10, SCHEDULE) is None
    assert delay_s(1, ()) is None


@pytest.mark.parametrize(
    ("asked", "expected"), [(None, 5.0), (0.0, 5.0), (3.0, 5.0), (60.0, 60.0), (1e9, 86_400.0)]
)
def test_a_receiver_is_never_asked_sooner_than_it_wants(asked, expected):
    assert delay_s(1, SCHEDULE, asked, draw=lambda: 0.5) == expected


@given(st.lists(st.floats(0, 1e6), max_size=12))
def test_all_attempts_end_within_the_horizon(schedule):
    delays = [delay_s(n + 1, schedule) for n in range(len(schedule))]
    assert sum(delays) <= sum(schedule) * (1 + JITTER) * (1 + 1e-9)


def test_a_schedule_is_a_list_of_seconds():
    assert parse_schedule("5, 0.5,") == (5.0, 0.5)
    assert parse_schedule("") == ()


@pytest.mark.parametrize("text", ["5,x", "-1", "inf", "nan", "5;6"])
def test_what_is_no_schedule_is_named(text):
    with pytest.raises(ValueError, match="webhook_retries"):
        parse_schedule(text)
