"""A whole node with an emulated GPU pool: both pools serve, and both give the same answer."""

from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from tests.node.running_node import Node, wait_for
from tests.workers.conftest import GOLDEN
from workers.model import catalog

MODEL = "tiny_qwen35"


@pytest.fixture(scope="module")
def gpu_node(tmp_path_factory, free_port):
    """A node of its own, with a tiny hybrid model and both pools."""
    home = tmp_path_factory.mktemp("gpu-node")
    catalog.add(GOLDEN / f"{MODEL}.Q4_0.gguf", MODEL, home, progress=None)
    settings = {"LOCKSTEP_GPU": "emulate", "LOCKSTEP_MODEL": MODEL, "LOCKSTEP_KV_MIB": "64"}
    settings["FAKE_CUDA"] = f"lost_if={home / 'lost'}"
    node = Node(home, free_port(), free_port(), **settings)
    node.start()
    yield node
    node.kill()


def request(number: int) -> list[str]:
    return [
        "prompt",
        f"Fact number {number}:",
        "max_tokens",
        "12",
        "temperature",
        "0.8",
        "seed",
        "3",
    ]


def long_request() -> list[str]:
    return ["prompt", "Once upon", "max_tokens", "400", "temperature", "1", "seed", "5"]


def states(node) -> dict[str, str]:
    return {load.pool: load.state for load in node.store.loads()}


@contextmanager
def only(node, pool: str) -> Iterator[None]:
    """The other pool is frozen, and the router knows it."""
    wait_for(lambda: states(node) == {"cpu": "ready", "gpu": "ready"}, "two pools ready")
    node.processes()
    other = node.program("cpu" if pool == "gpu" else "gpu")
    other.suspend()
    try:
        wait_for(lambda: states(node) == {pool: "ready"}, "the other pool is silent")
        yield
    finally:
        other.resume()


def test_both_pools_say_the_same_bits(gpu_node):
    ends = {}
    for pool in ("gpu", "cpu"):
        with only(gpu_node, pool):
            ends[pool] = [gpu_node.end(gpu_node.add(*request(n))) for n in range(4)]
        assert {job["pool"] for job in ends[pool]} == {pool}
    for one, other in zip(ends["gpu"], ends["cpu"], strict=True):
        assert (one["digest"], one["text"]) == (other["digest"], other["text"])


def test_a_gpu_that_falls_off_the_bus_costs_no_request(gpu_node):
    with only(gpu_node, "cpu"):
        undisturbed = gpu_node.end(gpu_node.add(*long_request()))
    with only(gpu_node, "gpu"):
        asked = gpu_node.add(*long_request())
        wait_for(lambda: gpu_node.num_tokens(asked) > 2, "it has tokens of the GPU")
    wait_for(lambda: states(gpu_node) == {"cpu": "ready", "gpu": "ready"}, "the CPU is back")
    assert gpu_node.num_tokens(asked) < 400, "the GPU was too fast for this test"
    lost = gpu_node.home / "lost"
    lost.touch()
    job = gpu_node.end(asked)
    assert (job["status"], job["pool"]) == ("finished", "cpu")
    assert (job["text"], job["digest"]) == (undisturbed["text"], undisturbed["digest"])
    wait_for(lambda: states(gpu_node).get("gpu") == "failed", "the next process sees none, either")
    said = httpx.get(f"{gpu_node.url}/readyz").json()
    assert said["status"] == "ready" and "off the bus" in said["pools"]["gpu"], said
    assert 'lockstep_pool_failed{pool="gpu"' in httpx.get(f"{gpu_node.url}/metrics").text
    lost.unlink()
    gpu_node.kill_program("gpu")  # it would try again by itself, some time later
    wait_for(lambda: states(gpu_node) == {"cpu": "ready", "gpu": "ready"}, "the GPU is back")
    assert gpu_node.end(gpu_node.add(*request(0)))["status"] == "finished"
