"""Fleets of nodes as processes; none outlives its test."""

import pytest

from tests.chaos.node import packed
from tests.fleet.nodes import Fleet, FleetNode


@pytest.fixture
def make_fleet(redis_url, tmp_path):
    """make_fleet("a", "b"): these nodes, ready."""
    begun = []

    def make(*names, start=True, **settings):
        nodes = [FleetNode(redis_url, tmp_path / name, name, **settings) for name in names]
        fleet = Fleet(nodes)
        begun.append(fleet)
        if start:
            fleet.start()
        return fleet

    yield make
    for fleet in begun:
        fleet.kill()


@pytest.fixture(scope="session")
def other_model():
    """A folder with other weights than the fleet's."""
    return packed("tiny_qwen3") / "tiny_qwen3"
