"""Two models of each architecture, made here by transformers, give its logits (extra `golden`)."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from kernels.cpu.host import CpuOps
from tests.workers.model.drive import alone, run
from workers.model import catalog
from workers.model.build import load_model

ROOT = Path(__file__).parents[2]
NAMES = [f"{a}-{seed}" for a in ("llama", "qwen2", "qwen3", "gemma3", "qwen35") for seed in (1, 2)]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("torch") is None, reason="needs the extra golden"),
]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("transformers")
    script = ROOT / "tests" / "slow" / "from_transformers.py"
    subprocess.run([sys.executable, str(script), str(folder)], check=True)
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_transformers(made, name, tmp_path):
    """The tolerances of golden/README.md for 8-bit activations."""
    facts = np.load(made / f"{name}.npz")
    folder = catalog.add(made / f"{name}.gguf", name, tmp_path, None)
    model = load_model(folder, CpuOps(1), max_step_tokens=128, max_logit_rows=128)
    (actual,) = run(model, [facts["ids"]], alone(len(facts["ids"]), 50))
    expected = facts["logits"]
    apart = np.linalg.norm(actual - expected, axis=1) / np.linalg.norm(expected, axis=1)
    print(f"{name:10} mean {apart.mean():.4f} max {apart.max():.4f}", end=" ")
    best = np.sort(expected, axis=1)
    differs = actual.argmax(1) != expected.argmax(1)
    print(f"top-1 {1 - differs.mean():.3f}")
    assert apart.max() < 0.10
    assert apart.mean() < 0.04
    assert ((best[:, -1] - best[:, -2])[differs] < 0.5).all()
