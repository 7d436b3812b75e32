"""The pool as a process with the real model: python -m workers.pool."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.workers.queue.conftest import Node, stop_all
from workers.pool import said_loading
from workers.settings import BAD_CONFIG
from workers.text.text_model import TextModel
from workers.wire import SamplingParams

ROOT = Path(__file__).parents[2]
MODEL = "smollm2-135m"


@pytest.fixture
def node(redis_url):
    return Node(redis_url)


@pytest.fixture
def text(model_home) -> TextModel:
    return TextModel.load(model_home / "models" / MODEL)


@pytest.fixture
def pools(redis_url, tmp_path, model_home):
    """Starts pools on a home of their own that shares the packed model."""
    (tmp_path / "models").symlink_to(model_home / "models")
    started = []

    def start(pool, **settings):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("LOCKSTEP_")}
        environment |= {"LOCKSTEP_HOME": str(tmp_path), "LOCKSTEP_REDIS_URL": redis_url}
        environment |= {"LOCKSTEP_THREADS": "1", "LOCKSTEP_KV_MIB": "64"}
        environment |= {"LOCKSTEP_CALIBRATE": "off", **settings}
        command = [sys.executable, "-m", "workers.pool", pool]
        started.append(subprocess.Popen(command, env=environment, cwd=ROOT))
        return started[-1]

    yield start
    stop_all(started)


def states(node):
    return {load.pool: load.state for load in node.store.loads()}


def ask(node, text, request_id, prompt, max_tokens, pool="cpu", **params):
    sampling = SamplingParams(max_tokens=max_tokens, **{"temperature": 0.0, **params})
    tokens = tuple(text.encode(prompt))
    node.route(request_id, token_ids=tokens, params=sampling, model=MODEL, pool=pool)


def test_the_model_answers(node, pools, text):
    ask(node, text, "france", "The capital of France is", 4)
    ask(node, text, "count", "1, 2, 3, 4,", 12)
    pools("cpu", LOCKSTEP_CALIBRATE="auto")
    node.until_ended("france", "count", seconds=120)
    node.check_ended("france")
    assert node.store.job("france")["text"].startswith(" Paris")
    assert node.store.job("count")["text"].startswith(" 5, 6, 7")
    node.until(lambda: states(node) == {"cpu": "ready"})


def test_a_killed_pool_says_the_same_as_one_that_was_not(node, pools, text):
    prompts = {f"r{i}": f"{i}. Once upon a time there was" for i in range(3)}
    for request_id, prompt in prompts.items():
        ask(node, text, request_id, prompt, 60, temperature=1.0, seed=7)
        ask(node, text, f"{request_id}-whole", prompt, 60, temperature=1.0, seed=7, pool="gpu")
    first = pools("cpu")
    node.until(lambda: all(node.redis.xlen(node.keys.tokens(i)) > 5 for i in prompts), 120)
    first.kill()
    first.wait()
    assert all(node.status(i) == "running" for i in prompts)
    pools("cpu")
    pools("gpu", LOCKSTEP_GPU="cpu")  # the undisturbed one: a second CPU engine
    node.until_ended(*prompts, *(f"{i}-whole" for i in prompts), seconds=200)
    for request_id in prompts:
        node.check_ended(request_id)
        job, whole = node.store.job(request_id), node.store.job(f"{request_id}-whole")
        assert (job["text"], job["digest"]) == (whole["text"], whole["digest"])
        assert job["output_tokens"] == whole["output_tokens"]


def test_without_a_gpu_the_gpu_pool_says_so(node, pools):
    process = pools("gpu", LOCKSTEP_GPU="auto")
    node.until(lambda: states(node) == {"gpu": "absent"})
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0


def test_a_model_that_is_not_there_is_one_sentence(node, pools):
    process = pools("cpu", LOCKSTEP_MODEL="nobody")
    assert process.wait(60) == 1


@pytest.mark.parametrize("arguments", [[], ["tpu"], ["cpu", "gpu"]])
def test_what_it_takes_is_said(arguments):
    command = [sys.executable, "-m", "workers.pool", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (2, "usage: python -m workers.pool gpu|cpu\n")


@pytest.mark.parametrize(
    ("program", "text"),
    [
        *(("workers.pool cpu", b"port = 80x"), ("router", b"port = 0")),
        ("workers.store_server", b"\xff"),
    ],
)
def test_a_wrong_lockstep_toml_is_one_sentence_whatever_reads_it(tmp_path, program, text):
    """It was a traceback."""
    (tmp_path / "lockstep.toml").write_bytes(text)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("LOCKSTEP_")}
    done = subprocess.run(
        [sys.executable, "-m", *program.split()], cwd=tmp_path, capture_output=True, text=True,
        env=environment | {"PYTHONPATH": str(ROOT)}, timeout=60,
    )  # fmt: skip
    assert done.returncode == BAD_CONFIG
    assert len(done.stderr.splitlines()) == 1, done.stderr


def test_a_gpu_that_is_too_small_is_said_and_tried_again(node, pools):
    process = pools("gpu", LOCKSTEP_GPU="emulate", FAKE_CUDA="memory_mib=1")
    node.until(lambda: states(node) == {"gpu": "failed"})
    [note] = [load.note for load in node.store.loads() if load.state == "failed"]
    assert "GPU memory is full" in note and "\n" not in note
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0


def test_a_pool_says_that_it_loads_for_as_long_as_it_does(node):
    """A large model takes minutes, and what is said of a pool holds for five seconds."""
    with said_loading(node.store, "cpu", "w", MODEL):
        for _ in range(2):
            node.until(lambda: states(node) == {"cpu": "loading"})
            node.store.redis.delete(node.store.keys.pool("cpu", "w"))
    assert states(node) == {}
