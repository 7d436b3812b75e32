"""A whole node under a few faults; `make chaos` runs as many as one has time for (README.md)."""

from tests.chaos.run import one_run


def test_a_short_storm_costs_no_request():
    faults = ["kill_at_tell", "doubles", "kill_store", "garbage"]
    assert one_run(1, faults, "tiny_qwen35").violations == []
