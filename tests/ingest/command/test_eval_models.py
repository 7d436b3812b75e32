"""`lockstep eval` on every golden file: recorded logits, and the same bits whatever runs."""

import json
from pathlib import Path

import numpy as np
import pytest

from ingest.command import eval as command
from ingest.command.local_engine import Processor, model_folder
from tests.ingest.command.test_eval import lockstep
from workers.settings import settings

GOLDEN = Path(__file__).parents[2] / "golden"
FILES = sorted(GOLDEN.glob("tiny_*.gguf"))
QWEN35 = GOLDEN / "tiny_qwen35.Q4_0.gguf"


@pytest.fixture(scope="module", params=FILES, ids=lambda path: path.name.split(".")[0])
def model(request, tmp_path_factory):
    """(folder, ids, recorded logits)"""
    facts = np.load(GOLDEN / f"{request.param.name.split('.')[0]}.npz")
    full = "full_" if "full_ids" in facts else ""
    with model_folder(str(request.param), tmp_path_factory.mktemp("home")) as folder:
        yield folder, tuple(facts[f"{full}ids"].tolist()), facts[f"{full}logits"]


def logits_of(model, path: Path, processor: Processor, beside: int = 0) -> np.ndarray:
    command.feed(model[0], processor, command.Feed(model[1], 3, beside), path)
    return np.load(path)


@pytest.mark.parametrize("pool", ["cpu", "reference"])
def test_logits_are_golden_within_their_tolerance(model, tmp_path, pool):
    expected = model[2]
    logits = logits_of(model, tmp_path / "l.npy", Processor(pool, 2, 512))
    error = np.linalg.norm(logits - expected, axis=1) / np.linalg.norm(expected, axis=1)
    assert error.max() < 0.10 and error.mean() < 0.04


@pytest.mark.parametrize(("threads", "chunk", "beside"), [(1, 1, 0), (3, 7, 2), (2, 16, 5)])
def test_the_same_bits_whatever_runs(model, tmp_path, threads, chunk, beside):
    expected = logits_of(model, tmp_path / "a.npy", Processor("cpu", 1, 512))
    got = logits_of(model, tmp_path / "b.npy", Processor("cpu", threads, chunk), beside)
    assert np.array_equal(got.view(np.uint32), expected.view(np.uint32))


def test_the_gpu_pool_gives_the_same_bits(model, tmp_path, monkeypatch):
    """The GPU's kernels, emulated; the settings are read from the environment, once."""
    expected = logits_of(model, tmp_path / "a.npy", Processor("cpu", 1, 512))
    monkeypatch.setenv("LOCKSTEP_GPU", "emulate")
    settings.cache_clear()
    got = logits_of(model, tmp_path / "b.npy", Processor("gpu", 1, 31), 1)
    settings.cache_clear()
    assert np.array_equal(got.view(np.uint32), expected.view(np.uint32))


def test_the_command_takes_a_hybrid_model_as_any_other(tmp_path):
    ids, out = tmp_path / "ids.json", tmp_path / "logits.npy"
    ids.write_text(json.dumps(list(range(9, 49))))
    arguments = ["--token-ids", str(ids), "--logits", str(out), "--greedy", "4", "--json"]
    done = lockstep(tmp_path, str(QWEN35), *arguments, "--chunk", "7", "--beside", "3")
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["greedy_ids"]) == 4
    assert np.load(out).shape == (40, 512)
