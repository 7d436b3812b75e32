"""Three nodes with one object store: a dead one's sessions go on, and nothing is computed again."""

import shutil

import pytest

from kv_tier.remote.bucket import Bucket
from kv_tier.remote.places import version_in
from kv_tier.sessions import Sessions
from tests.node.running_node import wait_for
from workers.fleet.names import node_of

PROMPT = "It was the best of times, it was the worst of times. " * 12


def is_sent(url: str, home, session_id: str) -> bool:
    """Whether all that a node has of a session is in the store, with its KV."""
    head = Sessions(home / "kv").head("default", session_id)
    found = Bucket(url).list(f"sessions/default/{session_id}")
    there = {version_in(one.name) for one in found}
    return head is not None and head.num_kv > 0 and (head.fence, head.generation) in there


@pytest.mark.slow
def test_sessions_of_a_dead_node_go_on_without_a_prefill(make_fleet, tmp_path):
    url = f"file://{tmp_path}/shared"
    told = {"LOCKSTEP_KV_STORE_URL": url, "LOCKSTEP_KV_STORE_IDLE_S": "1"}
    fleet = make_fleet("a", "b", "c", **told)
    names = [f"s{n}" for n in range(6)]
    first = {name: fleet.end(fleet.add(f"{name} {PROMPT}", session_id=name)) for name in names}
    homes = {name: node_of(job["pool"]) for name, job in first.items()}
    dead = homes[names[0]]
    lost = [name for name in names if homes[name] == dead]
    home = fleet.nodes[dead].home
    for name in lost:
        wait_for(lambda name=name: is_sent(url, home, name), f"{name} in the store", 60)
    fleet.nodes.pop(dead).kill()
    shutil.rmtree(home / "kv")
    for name in lost:
        job = fleet.end(fleet.add("and then", session_id=name))
        assert job["status"] == "finished" and node_of(job["pool"]) != dead, job
        before = first[name]["prompt_tokens"] + first[name]["output_tokens"]
        assert job["cached_tokens"] >= before - 1
        anew = [f"{name} {PROMPT}", "and then"]  # as a new session has it
        said = [fleet.end(fleet.add(text, session_id=f"again-{name}"))["text"] for text in anew]
        assert said == [first[name]["text"], job["text"]]
