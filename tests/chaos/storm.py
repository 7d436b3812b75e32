"""One run: a node, clients, faults one after the other, then calm, and the checks.

start ─► clients ask ─────────────────────────────► enough ─► calm ─► checks ─► Outcome
              └─ fault ─ pause ─ fault ─ pause ─ ...
"""

import random
import shutil
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import msgspec
import psutil
from redis.exceptions import RedisError

from tests.chaos.node import ChaosNode, resume
from tests.chaos.workload import Client, Record, code_of, insist
from tests.node.running_node import wait_for
from workers.wire import TERMINAL

CLIENTS = 3
LOOK_S = 0.1
LOAD_S = 5.0  # clients ask for so long at least
CALM_S = 180.0  # until the node must be whole again


@dataclass(frozen=True)
class Fault:
    """One way to go wrong.

    rows    of the fault matrix in README.md
    weight  how often it is drawn, of all of them
    linked  it needs the proxy between the node and Redis
    """

    name: str
    inject: Callable[["Storm"], None]
    rows: tuple[int, ...]
    weight: float = 1.0
    linked: bool = False


class Outcome(msgspec.Struct, omit_defaults=True):
    """What a run came to. faults: what was done, with the seconds from the start and a remark.

    cut         ids that nobody knows any more, for the log has lost that they were accepted
    errors      last lines of tracebacks in the node's log: what nobody had foreseen
    violations  what must not be, each with its kind in front: "lost: ..."
    """

    seed: int
    model: str
    faults: list[tuple[float, str, str]]
    asked: int = 0
    seconds: float = 0.0
    ends: dict[str, int] = {}
    codes: dict[str, int] = {}
    webhooks: int = 0
    starts: int = 1
    phases: dict[str, float] = {}
    cut: list[str] = []
    errors: list[str] = []
    violations: list[str] = []


@dataclass
class Seen:
    """Ends as they were first seen: they never change."""

    ends: dict[str, tuple[str, str]] = field(default_factory=dict)
    changed: list[str] = field(default_factory=list)


class Storm:
    """What faults may touch."""

    def __init__(
        self,
        seed: int,
        node: ChaosNode,
        faults: Sequence[Fault],
        pace_s: float,
        check: Callable[["Storm"], list[str]],
    ) -> None:
        """node: a new one, or one on which an earlier run has ended well."""
        self.seed, self.node, self.faults = seed, node, faults
        self.pace_s, self.check = pace_s, check
        self.begin = time.monotonic()
        self.chance = random.Random(f"{seed} faults")
        self.receiver = node.receiver
        self.receiver.deliveries.clear()
        self.record, self.seen = Record(), Seen()
        self.is_cut, self.cut_ids = False, set[str]()  # the log was; whose acceptance with it
        self.outcome = Outcome(seed, node.model, [])
        self.clients: list[Client] = []
        self.over = threading.Event()
        self.kills_before = node.kills

    @property
    def url(self) -> str:
        """Redis, as the node's parts reach it."""
        port = self.node.to_store.port if self.node.is_linked else self.node.store_port
        return f"redis://127.0.0.1:{port}/0"

    # --- what faults use ---

    def note(self, remark: str) -> None:
        """A remark on the fault that is under way."""
        at, name, before = self.outcome.faults[-1]
        self.outcome.faults[-1] = (at, name, f"{before}; {remark}" if before else remark)

    def phase(self, name: str) -> None:
        """It begins now, seconds after the start."""
        self.outcome.phases[name] = round(time.monotonic() - self.begin, 1)

    def sleep(self, least_s: float, most_s: float) -> None:
        time.sleep(self.chance.uniform(least_s, most_s))

    def new_id(self, kind: str) -> str:
        return f"s{self.seed}-{kind}-{self.chance.randrange(10**6):06}"

    def add(self, sla: str, *words: str | bytes) -> str:
        """XADD by somebody who insists; the entry's id."""
        store = self.node.store

        def attempt() -> str:
            stream = store.keys.requests(sla)
            entry: bytes = store.redis.execute_command("XADD", stream, "*", *words)
            return entry.decode()

        return str(insist(attempt, "a message"))

    def post_refused(self, body: dict[str, object]) -> None:
        """A request that the door must not take; a door that is away does not take it, too."""
        with suppress(httpx.HTTPError):
            answer = httpx.post(f"{self.node.url}/v1/jobs", json=body, timeout=20)
            if answer.status_code not in (400, 413, 429, 503):
                self.record.note(f"not refused: {answer.status_code} {answer.text[:200]}")
            elif code_of(answer) is None:
                self.record.note(f"refused without a code: {answer.text[:200]}")

    def move_everything(self) -> None:
        with suppress(RedisError):
            for request_id in list(self.record.asked)[-20:]:
                self.node.store.move(request_id, self.chance.choice(["cpu", "gpu"]))

    # --- a run ---

    def run(self, logs: Path | None = None) -> Outcome:
        """Gives what came of it, whatever happens; the node is left to the caller.

        logs  where its log is kept if anything was wrong
        """
        try:
            self.rage()
            self.calm()
            self.outcome.violations += self.check(self)
        except Exception:
            self.outcome.violations.append(f"harness: {traceback.format_exc()[-1500:]}")
        finally:
            self.over.set()
            for client in self.clients:
                client.enough.set()
        if logs is not None and self.outcome.violations:
            logs.mkdir(parents=True, exist_ok=True)
            shutil.copy(self.node.log, logs / f"{self.seed}.log")
        self.outcome.seconds = round(time.monotonic() - self.begin, 1)
        self.outcome.asked = len(self.record.asked)
        self.outcome.starts = 1 + self.node.kills - self.kills_before
        return self.outcome

    def rage(self) -> None:
        if not self.node.has_begun:
            self.node.begin(linked=any(fault.linked for fault in self.faults))
        self.phase("whole")
        url = f"http://127.0.0.1:{self.node.to_receiver.port}/hook"
        self.clients = [
            Client(self.node, self.record, self.seed, number, url) for number in range(CLIENTS)
        ]
        threading.Thread(target=self.watch, daemon=True).start()
        begin = time.monotonic()
        for client in self.clients:
            client.start()
        self.sleep(0.5, 1.5)
        for fault in self.faults:
            self.outcome.faults.append((round(time.monotonic() - self.begin, 1), fault.name, ""))
            try:
                fault.inject(self)
            except (RedisError, psutil.Error) as error:  # the fault before it is still felt
                self.note(f"not to the end: {type(error).__name__}")
            self.sleep(0.2, 2 * self.pace_s)
        time.sleep(max(0.0, LOAD_S - (time.monotonic() - begin)))

    def calm(self) -> None:
        """No more faults, no more requests; everything may recover."""
        self.phase("calm")
        self.receiver.mood = ""
        self.node.to_store.mend()
        self.node.to_receiver.mend()
        for _, process in self.node.all_running():
            resume(process)
        for client in self.clients:
            client.enough.set()
        wait_for(self.node.is_whole, f"whole again\n{self.node.tail()}", CALM_S)
        for client in self.clients:
            client.join(CALM_S)

    def watch(self) -> None:
        """Look at who has ended; an end that changes later was not the only one."""
        while not self.over.is_set():
            with suppress(RedisError):
                self.look()
            self.over.wait(LOOK_S)

    def look(self) -> None:
        ids = list(self.record.asked)
        with self.node.store.redis.pipeline(transaction=False) as pipeline:
            for request_id in ids:
                pipeline.hmget(self.node.store.keys.job(request_id), "status", "digest", "text")
            replies = pipeline.execute()
        for request_id, (status, digest, text) in zip(ids, replies, strict=True):
            if status is None or status.decode() not in TERMINAL:
                continue
            end = (status.decode(), f"{digest} {text}")
            if self.seen.ends.setdefault(request_id, end) != end:
                self.seen.changed.append(f"{request_id}: {self.seen.ends[request_id]} then {end}")
                self.seen.ends[request_id] = end
