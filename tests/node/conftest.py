"""One running node for all tests of this folder, and one receiver of its webhooks."""

import json

import pytest
from openai import OpenAI

from tests.node.running_node import Node
from tests.node.webhook_receiver import SECRET, Receiver

# a node that promises nothing refuses nothing for being late, however slow the machine is
NOTHING = {
    "realtime": {"ttft_ms": 0, "tpot_ms": 0},
    "standard": {"ttft_ms": 0, "tpot_ms": 0},
    "batch": {"deadline_ms": 0},
}


@pytest.fixture(scope="session")
def make_node(tmp_path_factory, model_home, free_port):
    """Starts nodes, with the default model packed already; kills what is left of them."""
    nodes = []

    def make(**settings: str) -> Node:
        home = tmp_path_factory.mktemp("node")
        (home / "models").symlink_to(model_home / "models")
        node = Node(home, free_port(), free_port(), **settings)
        nodes.append(node)
        node.start()
        return node

    yield make
    for node in nodes:
        node.kill()


@pytest.fixture(scope="session")
def node(make_node) -> Node:
    return make_node(
        LOCKSTEP_SLA=json.dumps(NOTHING),
        LOCKSTEP_WEBHOOK_SECRET=SECRET,
        LOCKSTEP_WEBHOOK_ALLOW="127.0.0.0/8",
        LOCKSTEP_LEASE_S="5",
    )


@pytest.fixture(scope="session")
def receiver():
    receiver = Receiver()
    yield receiver
    receiver.stop()


@pytest.fixture(scope="session")
def openai(node) -> OpenAI:
    """The real client, without retries of its own."""
    return OpenAI(base_url=f"{node.url}/v1", api_key="none", max_retries=0, timeout=120)
