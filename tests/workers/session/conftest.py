"""Pools as processes with tiny models, sessions on real files, and a judge that keeps nothing."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from kernels.cpu.host import CpuOps
from kv_tier.sessions import Sessions
from tests.workers.queue.conftest import Node, stop_all
from tests.workers.session.restorer_desk import desk
from workers.engine.engine import Engine
from workers.engine.limits import EngineLimits
from workers.model.build import load_model
from workers.text.text_model import TextModel
from workers.wire import Request, SamplingParams

__all__ = ["desk"]
HERE = Path(__file__).parent
ROOT = HERE.parents[2]
LONG = "It was the best of times, it was the worst of times. " * 12
PATIENCE_S = 60.0


class Pools:
    """Processes of `python -m workers.pool` on one home, and conversations with them.

    With step_s they decode slowly enough to be met in the middle of a turn.
    """

    def __init__(self, redis_url: str, home: Path, model: str) -> None:
        self.node, self.home, self.model = Node(redis_url), home, model
        self.store, self.redis, self.keys = self.node.store, self.node.redis, self.node.keys
        self.started: list[subprocess.Popen] = []
        self.sessions = Sessions(home / "kv")

    def start(self, pool="cpu", step_s=0.0, **settings) -> subprocess.Popen:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("LOCKSTEP_")}
        environment |= {"LOCKSTEP_HOME": str(self.home), "LOCKSTEP_REDIS_URL": self.node.url}
        environment |= {"LOCKSTEP_THREADS": "1", "LOCKSTEP_KV_MIB": "64", "LOCKSTEP_GPU": "cpu"}
        environment |= {"LOCKSTEP_CALIBRATE": "off"}
        environment |= {"LOCKSTEP_MODEL": self.model, "LOCKSTEP_LEASE_S": "4", **settings}
        command = [sys.executable, "-m", "workers.pool", pool]
        if step_s:
            command = [sys.executable, str(HERE / "troubled_pool.py"), pool, str(step_s)]
        self.started.append(subprocess.Popen(command, env=environment, cwd=ROOT))
        return self.started[-1]

    def stop(self, process: subprocess.Popen) -> float:
        """SIGTERM, as a keeper sends it. Gives seconds."""
        begin = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        return time.monotonic() - begin

    def kill(self, process: subprocess.Popen) -> None:
        process.kill()
        process.wait()

    def ask(self, request_id, content=None, *, pool="cpu", session="s", max_tokens=12, **more):
        """One more message of a session, or with token_ids a prompt; answered some day."""
        params = SamplingParams(max_tokens=max_tokens, temperature=1.0, seed=24)
        asked = {"session_id": session, "model": self.model, "params": params, "token_ids": ()}
        if content is not None:
            asked["messages"] = ({"role": "user", "content": content},)
        self.node.route(request_id, pool=pool, **(asked | more))

    def end(self, request_id):
        self.node.until_ended(request_id, seconds=PATIENCE_S)
        self.node.check_ended_journal(request_id)
        return self.store.job(request_id)

    def say(self, request_id, content, **more):
        """One turn; its job."""
        self.ask(request_id, content, **more)
        job = self.end(request_id)
        assert job["status"] == "finished", job
        return job

    def request(self, request_id) -> Request:
        """As it was composed."""
        return msgspec.msgpack.decode(self.store.job(request_id)["request"], type=Request)

    def until_tokens(self, request_id, count):
        self.node.until(lambda: self.redis.xlen(self.keys.tokens(request_id)) >= count, PATIENCE_S)

    def until_written(self, session="s"):
        """Until the pool has nothing of it that is in RAM alone, which it is asked to write."""
        self.redis.publish(self.keys.control, f"suspend {session}")
        self.node.until(lambda: self.store.session(session).get("writing") == "", PATIENCE_S)

    def token_ids(self, request_id):
        return [event.token_id for _, event in self.store.tokens(request_id)[:-1]]


class Judge:
    """An engine that keeps nothing and knows of no files: what a prompt's answer is."""

    def __init__(self, folder: Path) -> None:
        ops, self.text = CpuOps(1), TextModel.load(folder)
        model = load_model(folder, ops, max_step_tokens=512, max_logit_rows=1)
        limits = EngineLimits(1, 512, 100_000, 16)
        now_ms = lambda: time.time_ns() // 10**6  # noqa: E731
        self.engine = Engine(model, self.text, ops, limits, after_layer=lambda: None, now_ms=now_ms)

    def answer(self, request: Request):
        """(token ids, digest)"""
        self.engine.add(request)
        events = []
        while self.engine.has_work():
            events += [output.event for output in self.engine.step()]
        return [event.token_id for event in events[:-1]], events[-1].digest

    def agrees(self, pools: Pools, request_id: str) -> bool:
        """Bits and tokens, of what the journal holds and the job says."""
        ids, digest = self.answer(pools.request(request_id))
        assert pools.token_ids(request_id) == ids
        assert pools.store.job(request_id)["digest"] == digest
        return True


@pytest.fixture(params=["tiny_llama", "tiny_qwen35"])
def model(request) -> str:
    return request.param


@pytest.fixture
def pools(redis_url, tmp_path, tiny_home, model):
    """On a home of their own that shares the packed models."""
    (tmp_path / "models").symlink_to(tiny_home / "models")
    pools = Pools(redis_url, tmp_path, model)
    yield pools
    stop_all(pools.started)


JUDGES: dict[Path, Judge] = {}


@pytest.fixture
def judge(tiny_home, model) -> Judge:
    folder = tiny_home / "models" / model
    if folder not in JUDGES:
        JUDGES[folder] = Judge(folder)
    return JUDGES[folder]
