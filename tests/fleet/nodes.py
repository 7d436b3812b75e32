"""Nodes of a fleet as processes on one Valkey: a router and a CPU pool each, with a tiny model."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.chaos.node import NOTHING, packed
from tests.node.running_node import ROOT, wait_for
from workers.fleet.presence import nodes
from workers.store import Store
from workers.wire import TERMINAL, EndEvent, Keys

MODEL = "tiny_llama"
LEASE_S = 3.0
PREFIX = "fleet"


class FleetNode:
    """Started by start(); kill() is kill -9 of all of it."""

    def __init__(self, url: str, home: Path, name: str, *, prefix: str = PREFIX, **settings: str):
        self.name, self.home, self.log = name, home, home / "node.log"
        (home / "models").mkdir(parents=True, exist_ok=True)
        link = home / "models" / MODEL
        if not link.exists():
            link.symlink_to(packed(MODEL) / MODEL)
        self.store = Store(url, Keys(prefix, node=name), lease_s=LEASE_S)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        environment = {k: v for k, v in os.environ.items() if not k.startswith("LOCKSTEP_")}
        self.environment = environment | {
            "PYTHONPATH": str(ROOT),
            "LOCKSTEP_HOME": str(home),
            "LOCKSTEP_NODE": name,
            "LOCKSTEP_REDIS_URL": url,
            "LOCKSTEP_KEY_PREFIX": prefix,
            "LOCKSTEP_MODEL": MODEL,
            "LOCKSTEP_GPU": "off",
            "LOCKSTEP_THREADS": "1",
            "LOCKSTEP_MAX_BATCH": "4",
            "LOCKSTEP_KV_MIB": "16",
            "LOCKSTEP_KV_KEEP_FREE_MIB": "1",
            "LOCKSTEP_LEASE_S": str(LEASE_S),
            "LOCKSTEP_CALIBRATE": "off",
            "LOCKSTEP_SLA": json.dumps(NOTHING),
            **settings,
        }

    def start(self, *programs: str) -> None:
        """Router and pool, or only these."""
        modules = {"router": ["router"], "cpu": ["workers.pool", "cpu"]}
        for name in programs or modules:
            self._start(name, self.home, *modules[name])

    def start_fake(self, places: int, step_s: float) -> None:
        """A router, and a pool that computes nothing: a token for each place every step_s."""
        self.start("router")
        told = (self.store.url, self.store.keys.prefix, self.name, self.home, MODEL, places, step_s)
        self._start("cpu", ROOT, "tests.fleet.fake_pool", *map(str, told))

    def _start(self, name: str, folder: Path, *module: str) -> None:
        """A program as a process; module: its name and arguments."""
        self.processes[name] = subprocess.Popen(
            [sys.executable, "-m", *module],
            env=self.environment,
            cwd=folder,
            stdout=self.log.open("ab"),
            stderr=subprocess.STDOUT,
        )

    def is_ready(self) -> bool:
        """Its pool reports, and its router was heard."""
        for name, process in self.processes.items():
            assert process.poll() is None, f"{name} of {self.name} ended\n{self.log.read_text()}"
        heard = self.store.redis.zscore(self.store.keys.nodes, self.name)
        return bool(heard) and any(load.state == "ready" for load in self.store.loads())

    def stop(self, name: str) -> None:
        """SIGTERM to one of its programs, and its end."""
        process = self.processes.pop(name)
        process.terminate()
        process.wait(30)

    def kill(self) -> None:
        for process in self.processes.values():
            process.send_signal(signal.SIGKILL)
        for process in self.processes.values():
            process.wait(30)
        self.processes.clear()


class Fleet:
    """Some nodes, and what a client does; kill() is the end of every test."""

    def __init__(self, begun: list[FleetNode]) -> None:
        self.nodes = {node.name: node for node in begun}
        self.store = begun[0].store
        self.redis, self.keys = self.store.redis, self.store.keys

    def start(self) -> None:
        for node in self.nodes.values():
            node.start()
        self.await_ready()

    def await_ready(self) -> None:
        """All are, and each has heard of the others."""
        wait_for(lambda: all(node.is_ready() for node in self.nodes.values()), "ready", 60)
        wait_for(lambda: sum(self.shares()) < 1.01, "shares", 60)

    def shares(self) -> list[float]:
        return [one.report.share for one in nodes(self.store) if one.report.node in self.nodes]

    def kill(self) -> None:
        for node in self.nodes.values():
            node.kill()

    def add(self, prompt: str, sla: str = "standard", **words: object) -> str:
        """XADD with plain fields; gives the request's id."""
        told = {"prompt": prompt, "max_tokens": 24, "temperature": 0.8, "seed": 3} | words
        entry_id = self.redis.xadd(self.keys.requests(sla), {k: str(v) for k, v in told.items()})
        return f"{sla}-{entry_id.decode()}"

    def status(self, request_id: str) -> str:
        return (self.store.job(request_id) or {}).get("status", "")

    def end(self, request_id: str) -> dict:
        """The job, once it has ended."""
        wait_for(lambda: self.status(request_id) in TERMINAL, f"end of {request_id}", 60)
        return self.store.job(request_id)

    def check_once(self, request_id: str) -> None:
        """One end, behind tokens without a gap."""
        entries = self.store.tokens(request_id)
        *tokens, (end_id, end) = entries
        assert end_id == "1-0" and isinstance(end, EndEvent)
        assert [event.index for _, event in tokens] == list(range(len(tokens)))
        assert "".join(event.text for _, event in entries) == self.store.job(request_id)["text"]
