"""`lockstep eval` gives the bits of the model, whatever the chunks, threads and company."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ingest.command import eval as command
from ingest.command.eval import Feed
from ingest.command.failure import Failure
from ingest.command.local_engine import Processor, model_folder
from ingest.command.perplexity import Perplexity, Window, windows_of
from workers.text.text_model import TextModel

ROOT = Path(__file__).parents[3]
GGUF = ROOT / "tests" / "golden" / "tiny_llama.Q4_0.gguf"
GOLDEN = np.load(GGUF.with_name("tiny_llama.npz"))
FULL_IDS = tuple(GOLDEN["full_ids"].tolist())
MAIN = "from ingest.command.main import main; main()"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    with model_folder(str(GGUF), tmp_path_factory.mktemp("home")) as folder:
        yield folder


def logits_of(folder: Path, path: Path, processor: Processor, beside: int = 0) -> np.ndarray:
    command.feed(folder, processor, Feed(FULL_IDS, 0, beside), path)
    return np.load(path)


def lockstep(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", MAIN, "eval", *arguments],
        cwd=ROOT,
        env={**os.environ, "LOCKSTEP_HOME": str(home)},
        capture_output=True,
        text=True,
    )


def test_logits_are_golden_within_its_tolerance(folder, tmp_path):
    logits = logits_of(folder, tmp_path / "l.npy", Processor("cpu", 2, 512))
    assert (logits.dtype, logits.shape) == (np.float32, GOLDEN["full_logits"].shape)
    error = np.linalg.norm(logits - GOLDEN["full_logits"], axis=1)
    error /= np.linalg.norm(GOLDEN["full_logits"], axis=1)
    assert error.max() < 0.10 and error.mean() < 0.04


@pytest.mark.parametrize(("threads", "chunk", "beside"), [(1, 1, 0), (3, 7, 0), (2, 16, 5)])
def test_the_same_bits_whatever_runs(folder, tmp_path, threads, chunk, beside):
    expected = logits_of(folder, tmp_path / "a.npy", Processor("cpu", 1, 512))
    got = logits_of(folder, tmp_path / "b.npy", Processor("cpu", threads, chunk), beside)
    assert np.array_equal(got.view(np.uint32), expected.view(np.uint32))


def test_the_reference_is_near_but_its_own(folder, tmp_path):
    cpu = logits_of(folder, tmp_path / "a.npy", Processor("cpu", 1, 512))
    judge = logits_of(folder, tmp_path / "b.npy", Processor("reference", 1, 512))
    assert not np.array_equal(cpu, judge)
    assert np.abs(cpu - judge).max() < 0.5


def test_greedy_goes_on_from_the_logits(folder, tmp_path):
    path = tmp_path / "l.npy"
    found = command.feed(folder, Processor("cpu", 1, 512), Feed(FULL_IDS, 5, 0), path)
    logits = np.load(path)
    assert len(logits) == len(FULL_IDS)
    assert found["greedy_ids"][0] == int(logits[-1].argmax())
    assert len(found["greedy_ids"]) == len(found["digests"]) == 5
    longer = (*FULL_IDS, *found["greedy_ids"][:2])
    again = command.feed(folder, Processor("cpu", 2, 9), Feed(longer, 3, 2), None)
    assert again["greedy_ids"] == found["greedy_ids"][2:]


def test_perplexity_is_exp_of_the_mean_loss(folder, tmp_path):
    text = TextModel.load(folder)
    content = "a quick brown fox " * 4
    ids = text.encode(content)
    path = tmp_path / "l.npy"
    command.feed(folder, Processor("cpu", 1, 512), Feed(tuple(ids), 0, 0), path)
    rows = np.load(path).astype(np.float64)
    shares = np.exp(rows) / np.exp(rows).sum(axis=1, keepdims=True)
    loss = -np.log([shares[i, ids[i + 1]] for i in range(len(ids) - 1)]).mean()
    found = command.measure(folder, Processor("cpu", 2, 10), content, 1)
    assert found["perplexity"] == pytest.approx(math.exp(loss), rel=1e-4)
    assert found["tokens_scored"] == len(ids) - 1


def test_a_long_text_is_cut_and_second_halves_are_scored(folder):
    windows = windows_of([7] * 1300, TextModel.load(folder))
    assert [(len(window.ids), window.first_scored) for window in windows] == [(512, 257)] * 2
    measured = Perplexity([Window((1, 2, 3, 0), 2)])
    measured.take("0", 0, np.zeros((3, 4), np.float32))
    measured.take("0", 3, np.zeros((1, 4), np.float32))
    assert measured.result()["tokens_scored"] == 2
    assert measured.result()["perplexity"] == 4.0


def test_the_command_prints_one_object_and_leaves_no_model_behind(tmp_path):
    ids, out = tmp_path / "ids.json", tmp_path / "logits.npy"
    ids.write_text(json.dumps(FULL_IDS[:9]))
    done = lockstep(tmp_path, str(GGUF), "--token-ids", str(ids), "--logits", str(out), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["shape"] == [9, 512]
    assert np.load(out).shape == (9, 512)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ids.json", "logits.npy"]


@pytest.mark.parametrize(
    ("arguments", "exit_code", "sentence"),
    [
        (["no-such-model", "--token-ids", "IDS"], 1, "no-such-model"),
        (["GGUF", "--token-ids", "IDS", "--pool", "gpu"], 2, "GPU"),
        (["GGUF", "--token-ids", "IDS", "--pool", "tpu"], 2, "tpu"),
        (["GGUF"], 2, "--token-ids"),
        (["GGUF", "--token-ids", "no-such-file"], 2, "no-such-file"),
        (["GGUF", "--token-ids", "GGUF"], 2, "cannot be read"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(tmp_path, arguments, exit_code, sentence):
    ids = tmp_path / "ids.json"
    ids.write_text("[5, 6]")
    places = {"IDS": str(ids), "GGUF": str(GGUF)}
    done = lockstep(tmp_path, *(places.get(a, a) for a in arguments))
    assert (done.returncode, done.stdout) == (exit_code, "")
    assert sentence in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize("content", ["[]", "{}", '["a"]', "[-1]", "[true]", "no json"])
def test_a_file_without_token_ids_is_refused(tmp_path, content):
    path = tmp_path / "ids.json"
    path.write_text(content)
    with pytest.raises(Failure):
        command.read_ids(path)


def test_ids_outside_the_vocabulary_are_refused_and_leave_nothing(folder, tmp_path):
    with pytest.raises(Failure, match="outside"):
        command.feed(folder, Processor("cpu", 1, 64), Feed((5, 512), 1, 0), tmp_path / "l.npy")
    assert list(tmp_path.iterdir()) == []


def test_logits_that_cannot_be_written_are_refused(folder, tmp_path):
    with pytest.raises(Failure, match="cannot be written"):
        command.feed(
            folder, Processor("cpu", 1, 64), Feed(FULL_IDS, 0, 0), tmp_path / "no" / "l.npy"
        )
