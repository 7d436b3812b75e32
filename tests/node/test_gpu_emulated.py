"""A whole node with an emulated GPU pool: both pools serve, and both give the same answer."""

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
    return ["prompt", "Once upon", "max_tokens", "150", "temperature", "1", "seed", "5"]


def runs_on_gpu(node, request_id) -> bool:
    """It has a token from there; wherever it was placed, it is sent there."""
    if node.num_tokens(request_id) < 2:
        return False
    job = node.store.job(request_id)
    if job["pool"] != "gpu" and not job.get("moves"):
        node.store.move(request_id, "gpu")
    return job["pool"] == "gpu" and job["status"] == "running"


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


def test_a_gpu_that_falls_off_the_bus_costs_no_request(gpu_node):
    wait_for(lambda: states(gpu_node) == {"cpu": "ready", "gpu": "ready"}, "two pools ready")
    undisturbed = gpu_node.end(gpu_node.add(*long_request()))
    asked = gpu_node.add(*long_request())
    wait_for(lambda: runs_on_gpu(gpu_node, asked), "it runs on the GPU")
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
