"""A conversation with a hybrid model, whose state cannot be cut back, and a whole node."""

import json

import pytest

from tests.node.running_node import Node, wait_for
from tests.workers.conftest import GOLDEN
from workers.model import catalog

MODEL = "tiny_qwen35"
TURNS = ("Once upon a time there was a lighthouse. " * 8, "And then?", "And at last?")


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory, free_port):
    """A node of its own; its CPU pool alone."""
    home = tmp_path_factory.mktemp("hybrid-node")
    catalog.add(GOLDEN / f"{MODEL}.Q4_0.gguf", MODEL, home, progress=None)
    settings = {"LOCKSTEP_GPU": "off", "LOCKSTEP_MODEL": MODEL, "LOCKSTEP_KV_MIB": "64"}
    node = Node(home, free_port(), free_port(), LOCKSTEP_LEASE_S="5", **settings)
    node.start()
    yield node
    node.kill()


def say(node, session, content):
    """One turn: only what is new is sent. The job at its end."""
    messages = json.dumps([{"role": "user", "content": content}])
    fields = ["messages", messages, "session_id", session, "max_tokens", "12", "temperature", "0"]
    return node.end(node.add(*fields))


def known_after(job):
    """Tokens whose KV and state lie behind a turn: all but the last one sampled."""
    return int(job["prompt_tokens"]) + int(job["output_tokens"]) - 1


def test_a_hybrid_conversation_goes_on_through_a_restart_and_a_kill(hybrid):
    alone = [say(hybrid, "undisturbed", turn) for turn in TURNS]
    first = say(hybrid, "s", TURNS[0])
    hybrid.interrupt()
    hybrid.start()
    second = say(hybrid, "s", TURNS[1])
    assert int(second["cached_tokens"]) == known_after(first)
    hybrid.kill_program("cpu")
    wait_for(hybrid.is_ready, "ready")
    third = say(hybrid, "s", TURNS[2])
    assert int(third["cached_tokens"]) >= known_after(first), "its last written checkpoint"
    digests = [job["digest"] for job in (first, second, third)]
    assert digests == [job["digest"] for job in alone]
