"""The doctor at a whole node: nothing is wrong with a healthy one, and a frozen pool is found."""

import json
import subprocess
import sys

from tests.node.running_node import wait_for

# of the tree that is tested, and of what other tests of this node did
OTHERS = {"build-missing", "build-stale", "webhooks-dead", "requests-dead", "ok"}


def examined(node) -> dict[str, dict]:
    """What is wrong, by name."""
    done = subprocess.run(
        [sys.executable, "-m", "ingest.command.main", "doctor", "--json"],
        cwd=node.home, env=node.environment, capture_output=True, text=True,
    )  # fmt: skip
    said = json.loads(done.stdout)
    assert done.returncode == (0 if said["healthy"] else 1)
    return {f["name"]: f for f in said["findings"] if f["name"] not in OTHERS}


def test_of_a_healthy_node_nothing_is_wrong(node):
    assert examined(node) == {}


def test_a_frozen_pool_is_found_and_what_to_do_about_it(node):
    pool = node.program("cpu")
    pool.suspend()
    try:
        wait_for(lambda: not [load for load in node.store.loads() if load.pool == "cpu"], "silent")
        found = examined(node)
    finally:
        pool.resume()
    assert {"pool-silent", "pool-none-ready"} <= found.keys()
    assert f"kill -9 {pool.pid}" in found["pool-silent"]["todo"]
    wait_for(lambda: node.is_ready(), "ready again")
