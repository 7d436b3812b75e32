"""A Cluster that all short tests share, and whole nodes with a tiny model."""

import json

import pytest

from tests.chaos.node import NOTHING, packed
from tests.fleet.ha.servers import (
    LASTING,
    ClusterServers,
    Servers,
    free_ports,
    is_following,
    wait_for,
)
from tests.ingest.conftest import text, tiny_home
from tests.node.running_node import Node
from tests.node.webhook_receiver import SECRET, Receiver
from workers.master.client import StoreClients
from workers.store import Store
from workers.wire import Keys

__all__ = ["text", "tiny_home"]
MODEL = "tiny_llama"


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    """Three masters, no replica: nothing fails over."""
    servers = ClusterServers(tmp_path_factory.mktemp("cluster"))
    yield servers
    servers.end()


@pytest.fixture
def store(cluster) -> Store:
    """On the Cluster, with none of our keys."""
    store = Store(cluster.url, Keys(cluster.prefix), timeout_s=5.0)
    store.redis.flushdb()
    return store


@pytest.fixture(scope="module")
def make_node(tmp_path_factory, free_port):
    """Starts nodes on servers; kills what is left of them."""
    nodes = []

    def make(servers, **settings: str) -> Node:
        home = tmp_path_factory.mktemp("node")
        (home / "models").symlink_to(packed(MODEL))
        node = Node(
            home,
            free_port(),
            free_port(),
            LOCKSTEP_REDIS_URL=servers.url,
            LOCKSTEP_KEY_PREFIX=servers.prefix,
            LOCKSTEP_MODEL=MODEL,
            LOCKSTEP_GPU="off",
            LOCKSTEP_THREADS="1",
            LOCKSTEP_KV_MIB="16",
            LOCKSTEP_LEASE_S="5",
            LOCKSTEP_SLA=json.dumps(NOTHING),
            LOCKSTEP_WEBHOOK_SECRET=SECRET,
            LOCKSTEP_WEBHOOK_ALLOW="127.0.0.0/8",
            LOCKSTEP_WEBHOOK_RETRIES=",".join(["1"] * 40),
            **settings,
        )
        nodes.append(node)
        node.start()
        return node

    yield make
    for node in nodes:
        node.kill()


@pytest.fixture(scope="module")
def receiver():
    receiver = Receiver()
    yield receiver
    receiver.stop()


@pytest.fixture
def clients(cluster) -> StoreClients:
    return StoreClients(cluster.url, cluster.prefix)


@pytest.fixture
def pair(tmp_path):
    """A server, and its replica."""
    servers = Servers(tmp_path)
    first, second = free_ports(2)
    servers.add("a", first, *LASTING)
    servers.add("b", second, *LASTING, "--replicaof", f"127.0.0.1 {first}")
    wait_for(lambda: is_following(servers.all[1]), "the replica has all")
    yield servers.all
    servers.end()
