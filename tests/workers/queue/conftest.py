"""A store with routed requests, worker processes, and what must hold of a request in the end."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from workers.wire import GROUP, TERMINAL, EndEvent, Keys, Request, SamplingParams, TokenEvent
from workers.worker_store import WorkerStore

HERE = Path(__file__).parent
SLA = "standard"


class Node:
    """A store, and the words of these tests."""

    def __init__(self, url, **options):
        self.url, self.options = url, options
        self.store = WorkerStore(url, Keys("lockstep"), **options)
        self.keys, self.redis = self.store.keys, self.store.redis
        if not self.redis.exists(self.keys.requests(SLA)):
            self.redis.xgroup_create(self.keys.requests(SLA), GROUP, id="0", mkstream=True)

    def route(self, request_id, *, max_tokens=4, pool="cpu", **changes):
        """From the stream into a pool's queue, as the router does."""
        entry_id = self.redis.xadd(self.keys.requests(SLA), {"m": b"?"}).decode()
        self.redis.xreadgroup(GROUP, "router-0", {self.keys.requests(SLA): ">"})
        fields = {
            "model": "m",
            "token_ids": (1, 2),
            "arrival_ms": 1000,
            "params": SamplingParams(max_tokens=max_tokens),
        }
        request = Request(id=request_id, **(fields | changes))
        return self.store.route(
            sla=SLA, entry_id=entry_id, request=request, pool=pool, reason="test"
        )

    def status(self, request_id):
        return (self.store.job(request_id) or {}).get("status")

    def queue(self, name="cpu"):
        return [item.decode() for item in self.redis.lrange(self.keys.queue(name), 0, -1)]

    def leases(self, name="cpu"):
        return [item.decode() for item in self.redis.zrange(self.keys.wip(name), 0, -1)]

    def expire_leases(self, pool="cpu"):
        """As if every lease had run out."""
        for member in self.leases(pool):
            self.redis.zadd(self.keys.wip(pool), {member: 1})

    def until(self, true, seconds=60.0):
        end = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < end, "did not happen"
            time.sleep(0.01)

    def until_ended(self, *request_ids, seconds=60.0):
        self.until(lambda: all(self.status(i) in TERMINAL for i in request_ids), seconds)

    def check_ended_journal(self, request_id):
        """One end, at the end; the tokens before it have no gap and make the text."""
        job, entries = self.store.job(request_id), self.store.tokens(request_id)
        assert job["status"] in TERMINAL
        *tokens, (end_id, end) = entries
        assert end_id == "1-0" and isinstance(end, EndEvent) and end.status == job["status"]
        assert [event.index for _, event in tokens] == list(range(len(tokens)))
        assert all(isinstance(event, TokenEvent) for _, event in tokens)
        assert "".join(event.text for _, event in entries) == job["text"]

    def check_ended(self, request_id):
        """It has ended, and nothing of it is left in any queue."""
        self.check_ended_journal(request_id)
        assert request_id not in self.queue() + self.queue("gpu")
        assert not [m for m in self.leases() if m.startswith(f"{request_id}:")]
        assert self.redis.zscore(self.keys.active, request_id) is None


@pytest.fixture
def node(redis_url):
    return Node(redis_url)


def start_pool(url, home, pool="cpu", *, lease_s=2.0, step_s=0.02, capacity=8):
    """A pool's process with a fake engine."""
    arguments = [url, str(home), pool, str(lease_s), str(step_s), str(capacity)]
    command = [sys.executable, str(HERE / "pool_process.py"), *arguments]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("LOCKSTEP_")}
    return subprocess.Popen(command, env=environment, cwd=HERE.parents[2])


def stop_all(processes):
    for process in processes:
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.kill()
        process.wait(10)


@pytest.fixture
def processes(redis_url, tmp_path):
    """Starts pool processes; none outlives its test."""
    started = []
    yield lambda *a, **k: started.append(start_pool(redis_url, tmp_path, *a, **k)) or started[-1]
    stop_all(started)
