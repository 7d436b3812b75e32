"""Whole nodes under faults: nothing lost, nothing ended twice, no other token (README.md)."""

import pytest

from tests.chaos.faults.menu import MENU
from tests.chaos.run import one_run

SHORT = ["kill_at_tell", "doubles", "kill_store", "garbage"]


def test_a_short_storm_costs_no_request():
    assert one_run(1, SHORT, "tiny_qwen35").violations == []


@pytest.mark.slow
@pytest.mark.parametrize("name", list(MENU))
def test_a_fault_alone_costs_no_request(name):
    assert one_run(1, [name]).violations == []
