"""A whole node with an emulated GPU pool: both pools serve, and both give the same answer."""

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


def states(node) -> dict[str, str]:
    return {load.pool: load.state for load in node.store.loads()}


def test_both_pools_say_the_same_bits(gpu_node):
    """The router takes the GPU pool first; without it the CPU pool answers the same requests."""
    wait_for(lambda: states(gpu_node) == {"cpu": "ready", "gpu": "ready"}, "two pools ready")
    of_gpu = [gpu_node.end(gpu_node.add(*request(n))) for n in range(4)]
    assert {job["pool"] for job in of_gpu} == {"gpu"}
    gpu_node.processes()
    gpu_node.program("gpu").suspend()
    wait_for(lambda: states(gpu_node) == {"cpu": "ready"}, "the gpu pool is silent")
    of_cpu = [gpu_node.end(gpu_node.add(*request(n))) for n in range(4)]
    assert {job["pool"] for job in of_cpu} == {"cpu"}
    gpu_node.program("gpu").resume()
    for one, other in zip(of_gpu, of_cpu, strict=True):
        assert (one["digest"], one["text"]) == (other["digest"], other["text"])
