"""A node of an older release and one of this tree share a Redis, as while a fleet is upgraded.

Slow: the older release is taken out of the history and its C extension is compiled.
"""

import json
import os
import subprocess
import sys

import pytest

from tests.node.conftest import NOTHING
from tests.node.running_node import ROOT, Node, wait_for

OLDER = "0341084"  # the last commit before nodes had names
BUILD_S = 600
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def older_tree(tmp_path_factory):
    """Its sources, with the C extension."""
    tree = tmp_path_factory.mktemp("older")
    archive = subprocess.run(["git", "archive", OLDER], cwd=ROOT, capture_output=True, check=False)
    if archive.returncode != 0:
        pytest.skip(f"{OLDER} is not in this clone's history")
    subprocess.run(["tar", "-x", "-C", tree], input=archive.stdout, check=True)
    subprocess.run(
        [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"], cwd=tree,
        env=os.environ | {"PURE": "1"}, capture_output=True, timeout=BUILD_S, check=True,
    )  # fmt: skip
    return tree


@pytest.fixture
def nodes(older_tree, redis_url, model_home, tmp_path_factory, free_port):
    """The older one, which has no name, and b of this tree; ready."""
    made = []
    for tree, more in ((older_tree, {}), (ROOT, {"LOCKSTEP_NODE": "b"})):
        home = tmp_path_factory.mktemp("node")
        (home / "models").symlink_to(model_home / "models")
        settings = {"LOCKSTEP_REDIS_URL": redis_url, "LOCKSTEP_GPU": "off", "LOCKSTEP_THREADS": "1"}
        settings |= {"LOCKSTEP_SLA": json.dumps(NOTHING), "LOCKSTEP_LEASE_S": "5"}
        settings |= {"LOCKSTEP_MAX_BATCH": "4", "PYTHONPATH": str(tree)}
        made.append(Node(home, free_port(), free_port(), **settings, **more))
        made[-1].start()
    yield made
    for node in made:
        node.kill()


def ask(node, number, **more):
    fields = {"prompt": f"Fact number {number % 5}:", "max_tokens": 40, "temperature": 0, **more}
    return node.add(*(str(word) for pair in fields.items() for word in pair))


def test_the_newer_goes_on_with_what_the_older_ran_in_the_same_words(nodes):
    older, newer = nodes
    ids = [ask(newer, n, max_tokens=120) for n in range(24)]
    wait_for(lambda: runs(newer, ids, "cpu") and runs(newer, ids, "cpu@b"), "both run some")
    assert older.interrupt() < 10
    jobs = [newer.end(request_id) for request_id in ids]
    assert {job["status"] for job in jobs} == {"finished"}
    assert any("taken over" in job["reason"] for job in jobs)
    for number in range(5):
        assert len({job["text"] for job in jobs[number::5]}) == 1, number
    assert not newer.store.redis.llen(newer.store.keys.queue("cpu"))


def runs(node, ids, pool):
    """How many of them run there."""
    jobs = [node.store.job(request_id) or {} for request_id in ids]
    return sum(job.get("pool") == pool and job["status"] == "running" for job in jobs)
