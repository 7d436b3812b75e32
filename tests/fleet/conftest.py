"""Fleets of nodes as processes; none outlives its test."""

from types import SimpleNamespace

import pytest

from tests.chaos.node import packed
from tests.fleet.ha.servers import ClusterServers
from tests.fleet.nodes import PREFIX, Fleet, FleetNode


@pytest.fixture(params=["valkey", pytest.param("cluster", marks=pytest.mark.slow)])
def servers(request, tmp_path):
    """url and prefix of one Valkey, or of a Cluster of three masters."""
    if request.param == "valkey":
        yield SimpleNamespace(url=request.getfixturevalue("redis_url"), prefix=PREFIX)
        return
    cluster = ClusterServers(tmp_path / "cluster")
    yield cluster
    cluster.end()


@pytest.fixture
def make_fleet(servers, tmp_path):
    """make_fleet("a", "b"): these nodes, ready."""
    begun = []

    def make(*names, start=True, **settings):
        told = {"prefix": servers.prefix, **settings}
        nodes = [FleetNode(servers.url, tmp_path / name, name, **told) for name in names]
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
