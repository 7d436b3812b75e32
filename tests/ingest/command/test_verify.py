"""`lockstep verify` proves an answer in the store, or shows the first token that is not."""

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from ingest.command.local_engine import Processor, local_engine
from workers.model import catalog
from workers.wire import GROUP, EndEvent, Keys, Request, SamplingParams, TokenEvent
from workers.worker_store import WorkerStore

ROOT = Path(__file__).parents[3]
GGUF = ROOT / "tests" / "golden" / "tiny_llama.Q4_0.gguf"
MAIN = "from ingest.command.main import main; main()"
REQUEST = Request(
    id="r1",
    model="tiny_llama",
    token_ids=(27, 139, 321),
    arrival_ms=1000,
    params=SamplingParams(max_tokens=9, seed=4, top_p=0.9),
)
OTHER = "0123456789abcdef"


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    home = tmp_path_factory.mktemp("home")
    catalog.add(GGUF, "tiny_llama", home, progress=None)
    return home


@pytest.fixture(scope="module")
def answer(home) -> list:
    """What a pool's engine says to REQUEST."""
    folder = catalog.folder_of(home, "tiny_llama")
    engine = local_engine(folder, Processor("cpu", 1, 64), max_batch=4, num_blocks=4)
    engine.add(REQUEST)
    events = []
    while engine.has_work():
        events += [output.event for output in engine.step()]
    return events


@pytest.fixture
def store(redis_url) -> WorkerStore:
    store = WorkerStore(redis_url, Keys("lockstep"))
    store.redis.xgroup_create(store.keys.requests("standard"), GROUP, id="0", mkstream=True)
    return store


def put(store: WorkerStore, events: list) -> None:
    """The request goes through the store as always; a worker says these events."""
    entry_id = store.accept(request_id="r1", tenant="default", sla="standard", body=b"").entry_id
    store.redis.xreadgroup(GROUP, "router-0", {store.keys.requests("standard"): ">"})
    store.route(sla="standard", entry_id=entry_id, request=REQUEST, pool="cpu", reason="only")
    [item] = store.claim("cpu", "worker-1", 1)
    tokens = [event for event in events if isinstance(event, TokenEvent)]
    assert store.journal("cpu", [(item, tokens)]) == []
    if isinstance(events[-1], EndEvent):
        assert store.finish("cpu", "worker-1", item, events[-1], "text")
    late = msgspec.structs.replace(REQUEST, deadline_ms=2000)  # its deadline passed meanwhile
    store.redis.hset(store.keys.job("r1"), "request", msgspec.msgpack.encode(late))


def verify(store: WorkerStore, home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    here = {"LOCKSTEP_HOME": str(home), "LOCKSTEP_REDIS_URL": store.url}
    return subprocess.run(
        [sys.executable, "-c", MAIN, "verify", *arguments],
        cwd=ROOT,
        env={**os.environ, **here},
        capture_output=True,
        text=True,
    )


def test_a_true_answer_is_equal(store, home, answer):
    put(store, answer)
    done = verify(store, home, "r1", "--json", "--threads", "2")
    said = json.loads(done.stdout)
    assert (done.returncode, said["equal"], said["tokens"]) == (0, True, 9), done.stderr
    assert said["digest"] == answer[-1].digest
    assert said["first_difference"] is None


def test_another_token_is_shown(store, home, answer):
    wrong = msgspec.structs.replace(answer[4], token_id=answer[4].token_id ^ 1)
    put(store, [*answer[:4], wrong, *answer[5:]])
    done = verify(store, home, "r1")
    assert done.returncode == 1
    assert "output token 4" in done.stdout
    assert f"recorded  token {wrong.token_id}" in done.stdout
    assert f"computed  token {answer[4].token_id}" in done.stdout


def test_the_same_token_from_other_logits_is_shown(store, home, answer):
    wrong = msgspec.structs.replace(answer[2], digest=OTHER)
    put(store, [*answer[:2], wrong, *answer[3:]])
    done = verify(store, home, "r1", "--json")
    first = json.loads(done.stdout)["first_difference"]
    assert (done.returncode, first["index"]) == (1, 2)
    assert OTHER in first["recorded"]


def test_an_answer_that_ended_too_early_is_shown(store, home, answer):
    end = msgspec.structs.replace(answer[-1], finish_reason="stop", digest=answer[5].digest)
    put(store, [*answer[:6], end])
    done = verify(store, home, "r1", "--json")
    first = json.loads(done.stdout)["first_difference"]
    assert (done.returncode, first["index"]) == (1, 6)


def test_what_was_cancelled_or_still_runs_is_compared_as_far_as_it_goes(store, home, answer):
    put(store, answer[:5])
    assert verify(store, home, "r1").returncode == 0
    store.redis.flushall()
    store.redis.xgroup_create(store.keys.requests("standard"), GROUP, id="0", mkstream=True)
    put(store, [*answer[:3], EndEvent(status="cancelled", code="cancelled", error="by the client")])
    done = verify(store, home, "r1", "--json")
    assert (done.returncode, json.loads(done.stdout)["tokens"]) == (0, 3)


def test_what_cannot_be_compared_is_said(store, home, tmp_path, answer):
    cases = [(("nobody",), "there is no request")]
    put(store, answer)
    cases += [(("r1", "--pool", "gpu"), "GPU")]
    for arguments, sentence in cases:
        done = verify(store, home, *arguments)
        assert (done.returncode, done.stdout) == (2, "")
        assert sentence in done.stderr
    done = verify(store, tmp_path, "r1")
    assert done.returncode == 2
    assert "tiny_llama" in done.stderr
