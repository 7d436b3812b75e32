"""Requests move between the CPU and an emulated GPU; when the GPU fails, nothing is lost."""

import pytest

from tests.workers.session.conftest import LONG
from tests.workers.session.test_moves import moved, reused

FAULTS = {"full_if": "tiny_llama", "launch_error_if": "tiny_llama", "lost_if": "tiny_qwen35"}


def states(pools):
    return {load.pool: load.state for load in pools.store.loads()}


def start_both(pools, step_s=0.0, **settings):
    """CPU pool, GPU pool; both are ready."""
    gpu = {"LOCKSTEP_GPU": "emulate", **settings}
    started = pools.start("cpu", step_s), pools.start("gpu", **gpu)
    pools.node.until(lambda: states(pools) == {"cpu": "ready", "gpu": "ready"}, 30)
    return started


def test_there_and_back_computes_no_token_again(pools, judge):
    cpu, gpu = start_both(pools, 0.01)
    pools.ask("r1", LONG, max_tokens=70)
    pools.until_tokens("r1", 5)
    known = [moved(pools, "r1", pool, 5) for pool in ("gpu", "cpu", "gpu")]
    job = pools.end("r1")
    assert (job["status"], job["pool"]) == ("finished", "gpu")
    assert job["cached_tokens"] == job["prompt_tokens"]
    pools.node.until(lambda: reused(pools) >= 3 * (job["prompt_tokens"] - 1) + sum(known), 20)
    assert judge.agrees(pools, "r1")
    assert cpu.poll() is None and gpu.poll() is None


def test_the_next_turn_may_be_the_other_pools(pools, judge):
    start_both(pools)
    one = pools.say("r1", "It was the best of times.")
    two = pools.say("r2", "And then?", pool="gpu")
    assert two["cached_tokens"] == one["prompt_tokens"] + one["output_tokens"] - 1
    three = pools.say("r3", "And then?", pool="cpu")
    assert three["cached_tokens"] == two["prompt_tokens"] + two["output_tokens"] - 1
    assert all(judge.agrees(pools, request_id) for request_id in ("r1", "r2", "r3"))


@pytest.mark.parametrize(("fault", "model"), FAULTS.items())
def test_what_a_failing_gpu_held_goes_on_on_the_cpu(pools, judge, tmp_path, fault):
    mark = tmp_path / "fault"
    _, gpu = start_both(pools, FAKE_CUDA=f"{fault}={mark}")
    pools.ask("r1", "It was the worst of times.", pool="gpu", max_tokens=100)
    pools.ask("r2", pool="gpu", session=None, token_ids=tuple(range(5, 40)), max_tokens=100)
    pools.until_tokens("r1", 5), pools.until_tokens("r2", 5)
    mark.touch()
    assert gpu.wait(20) == 1
    jobs = [pools.end(request_id) for request_id in ("r1", "r2")]
    assert {(job["status"], job["pool"]) for job in jobs} == {("finished", "cpu")}
    assert {job["attempts"] for job in jobs} == {jobs[0]["attempts"]}
    assert judge.agrees(pools, "r1") and judge.agrees(pools, "r2")
