"""`lockstep eval --pool gpu`: a GPU, here an emulated one under PyCUDA, gives the CPU's logits."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from kernels.cuda.emulate.driver import environment
from tests.kernels.cases import same_bits
from tests.kernels.cuda.devices import pycuda_place
from tests.workers.conftest import GOLDEN

__all__ = ["pycuda_place"]  # a fixture
EVAL = [sys.executable, "-m", "ingest.command.main", "eval"]


@pytest.fixture
def evaluate(pycuda_place, tmp_path):
    """A function that runs the command on a pool; what it says, and the logits."""
    ids, logits = tmp_path / "ids.json", tmp_path / "logits.npy"
    ids.write_text(json.dumps(list(range(1, 40))))
    model = GOLDEN / "tiny_qwen35.Q4_0.gguf"

    def run(pool: str, **settings: str):
        arguments = [str(model), "--token-ids", str(ids), "--logits", str(logits)]
        options = ["--greedy", "5", "--chunk", "16", "--beside", "1", "--pool", pool, "--json"]
        env = os.environ | environment() | {"LOCKSTEP_HOME": str(tmp_path)} | settings
        env["PYTHONPATH"] = os.pathsep.join([pycuda_place, *sys.path])
        return subprocess.run(
            [*EVAL, *arguments, *options], env=env, capture_output=True, text=True
        )

    return run, logits


def test_logits_tokens_and_digests_are_the_cpus(evaluate):
    run, logits = evaluate
    found = {}
    for pool in ("cpu", "gpu"):
        done = run(pool)
        assert done.returncode == 0, done.stderr
        said = json.loads(done.stdout)
        found[pool] = said["greedy_ids"], said["digests"], np.load(logits)
    assert found["cpu"][:2] == found["gpu"][:2]
    same_bits(found["cpu"][2], found["gpu"][2])


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"LOCKSTEP_GPU": "off"}, "no GPU: LOCKSTEP_GPU is off"),
        ({"FAKE_CUDA": "old_driver"}, "no GPU that can be used: the driver gives none: cuInit"),
        ({"FAKE_CUDA": "memory_mib=65"}, "GPU memory is full"),
    ],
    ids=["off", "old driver", "too small"],
)
def test_without_a_usable_gpu_the_command_says_why(evaluate, settings, reason):
    done = evaluate[0]("gpu", **settings)
    assert done.returncode != 0
    assert reason in done.stderr
