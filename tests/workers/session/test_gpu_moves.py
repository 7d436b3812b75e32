"""Requests move between the CPU and an emulated GPU; when the GPU fails, nothing is lost.

Emulated twice: its kernels alone (LOCKSTEP_GPU=emulate), and its driver, with PyCUDA's own code.
"""

import os

import pytest

from kernels.cuda.emulate.driver import environment
from tests.kernels.cuda.devices import pycuda_place
from tests.workers.session.conftest import LONG
from tests.workers.session.test_moves import moved, reused

__all__ = ["pycuda_place"]  # a fixture
MODELS = [("tiny_llama", "kernels"), ("tiny_qwen35", "driver")]
FAULTS = [
    ("launch_error_if", "tiny_llama", "kernels"),
    ("full_if", "tiny_qwen35", "kernels"),
    ("lost_if", "tiny_qwen35", "driver"),
]


@pytest.fixture
def start_both(pools, request):
    """A function that starts a CPU pool and a GPU pool; both are ready.

    emulated: "kernels" or "driver"; faults: as FAKE_CUDA's
    """

    def start(emulated, step_s=0.0, faults=""):
        gpu = {"LOCKSTEP_GPU": "emulate", "FAKE_CUDA": faults}
        if emulated == "driver":
            paths = [request.getfixturevalue("pycuda_place"), os.environ.get("PYTHONPATH", "")]
            gpu = {"LOCKSTEP_GPU": "auto", "PYTHONPATH": os.pathsep.join(filter(None, paths))}
            gpu |= environment(faults)
        started = pools.start("cpu", step_s), pools.start("gpu", **gpu)
        pools.node.until(lambda: states(pools) == {"cpu": "ready", "gpu": "ready"}, 60)
        return started

    return start


def states(pools):
    return {load.pool: load.state for load in pools.store.loads()}


@pytest.mark.parametrize(("model", "emulated"), MODELS)
def test_there_and_back_computes_no_token_again(pools, judge, start_both, emulated):
    cpu, gpu = start_both(emulated, 0.01)
    pools.ask("r1", LONG, max_tokens=70)
    pools.until_tokens("r1", 5)
    known = [moved(pools, "r1", pool, 5) for pool in ("gpu", "cpu", "gpu")]
    job = pools.end("r1")
    assert (job["status"], job["pool"]) == ("finished", "gpu")
    assert job["cached_tokens"] == 0, "it was all computed for this request"
    pools.node.until(lambda: reused(pools) >= 3 * (job["prompt_tokens"] - 1) + sum(known), 20)
    assert judge.agrees(pools, "r1")
    assert cpu.poll() is None and gpu.poll() is None


@pytest.mark.parametrize(("model", "emulated"), MODELS[:1])
def test_the_next_turn_may_be_the_other_pools(pools, judge, start_both, emulated):
    start_both(emulated)
    one = pools.say("r1", "It was the best of times.")
    two = pools.say("r2", "And then?", pool="gpu")
    assert two["cached_tokens"] == one["prompt_tokens"] + one["output_tokens"] - 1
    three = pools.say("r3", "And then?", pool="cpu")
    assert three["cached_tokens"] == two["prompt_tokens"] + two["output_tokens"] - 1
    assert all(judge.agrees(pools, request_id) for request_id in ("r1", "r2", "r3"))


@pytest.mark.parametrize(("fault", "model", "emulated"), FAULTS)
def test_what_a_failing_gpu_held_goes_on_on_the_cpu(
    pools, judge, start_both, tmp_path, fault, emulated
):
    mark = tmp_path / "fault"
    _, gpu = start_both(emulated, faults=f"{fault}={mark}")
    pools.ask("r1", "It was the worst of times.", pool="gpu", max_tokens=100)
    pools.ask("r2", pool="gpu", session=None, token_ids=tuple(range(5, 40)), max_tokens=100)
    pools.until_tokens("r1", 5), pools.until_tokens("r2", 5)
    mark.touch()
    assert gpu.wait(20) == 1
    jobs = [pools.end(request_id) for request_id in ("r1", "r2")]
    assert {(job["status"], job["pool"]) for job in jobs} == {("finished", "cpu")}
    assert {job["attempts"] for job in jobs} == {jobs[0]["attempts"]}
    assert judge.agrees(pools, "r1") and judge.agrees(pools, "r2")


@pytest.mark.parametrize("model", ["tiny_llama"])
def test_an_emulated_gpu_says_from_the_first_what_it_costs(pools):
    """It said nothing, so it was taken for the fast one, and got what was urgent."""
    pools.start("gpu", LOCKSTEP_GPU="emulate", LOCKSTEP_CALIBRATE="auto")
    pools.node.until(lambda: states(pools) == {"gpu": "ready"}, 60)
    [load] = pools.store.loads()
    assert load.cost is not None and load.cost.step_ms(1, 64) > 10


@pytest.mark.parametrize(("found", "state"), [(False, "absent"), (True, "failed")])
@pytest.mark.parametrize("model", ["tiny_llama"])
def test_a_gpu_that_was_there_is_tried_again(pools, pycuda_place, found, state):
    """The driver sees none: that is final, unless one has failed before."""
    if found:
        (pools.home / "run").mkdir()
        (pools.home / "run" / "gpu.failed").write_text("it fell off the bus")
    path = os.pathsep.join(filter(None, [pycuda_place, os.environ.get("PYTHONPATH", "")]))
    pools.start("gpu", LOCKSTEP_GPU="auto", PYTHONPATH=path, **environment("no_device"))
    pools.node.until(lambda: state in [load.state for load in pools.store.loads()], 60)
    [note] = [load.note for load in pools.store.loads() if load.state == state]
    assert "no CUDA-capable device" in note and note.startswith("it fell off") == found
