"""Requests through every door at once, asked again until they are taken, and then looked at.

What is asked is the same few prompts again and again, with seeds: each answer is known from a run
in which nothing happened. A request counts as accepted when its door said so; all such must end
once, finished, with those very tokens.
"""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

import httpx
from redis.exceptions import RedisError

from ingest.client import Client
from tests.fleet.ha.servers import wait_for
from tests.node.running_node import Node
from tests.node.webhook_receiver import Receiver
from workers.wire import TERMINAL

ASKED: Final = tuple(
    {"prompt": f"Story {n}:", "max_tokens": 60 + 40 * (n % 4), "temperature": 0.8, "seed": n}
    for n in range(8)
)
TURNS: Final = tuple(f"Turn {n}: go on." for n in range(8))
TIMEOUT_S: Final = 60.0
RETRY_S: Final = 0.1


@dataclass
class Answer:
    """What is known of the answer to ASKED[number] from a calm run."""

    token_ids: list[int]
    text: str


@dataclass
class Load:
    """Threads that ask until they are stopped. accepted: id of each request to its number.

    accepted_at  monotonic seconds at which any door took one, in order
    refused      what doors said that took none
    broken       answers that were under way and broke off: why
    streamed_s   how long each one took that did not
    """

    node: Node
    client: Client
    receiver: Receiver
    calm: list[Answer] = field(default_factory=list)
    accepted: dict[str, int] = field(default_factory=dict)
    accepted_at: list[float] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    streamed_s: list[float] = field(default_factory=list)
    stopping: threading.Event = field(default_factory=threading.Event)
    threads: list[threading.Thread] = field(default_factory=list)

    def learn(self) -> None:
        """What each prompt's answer is."""
        ids = [self.client.enqueue(**asked) for asked in ASKED]
        for request_id in ids:
            assert self.node.end(request_id)["status"] == "finished"
            self.calm.append(Answer(*self.node.journalled(request_id)))

    def start(self) -> None:
        for door in (self.by_stream, self.by_job, self.by_sse):
            thread = threading.Thread(target=self.ask, args=(door,))
            thread.start()
            self.threads.append(thread)

    def stop(self) -> None:
        self.stopping.set()
        for thread in self.threads:
            thread.join(TIMEOUT_S)
            assert not thread.is_alive(), thread

    def ask(self, door: Callable[[str, int], None]) -> None:
        """Each request again by the same id until it is taken: a door may have lost its reply."""
        count = 0
        while not self.stopping.is_set():
            name, number = f"{door.__name__}-{count}", count % len(ASKED)
            while not self.stopping.is_set():
                try:
                    door(name, number)
                    break
                except (RedisError, httpx.HTTPError, Refused) as error:
                    self.refused.append(f"{type(error).__name__}: {error}")
                    time.sleep(RETRY_S)
            count += 1

    def took(self, name: str, number: int) -> None:
        self.accepted[name] = number
        self.accepted_at.append(time.monotonic())

    def by_stream(self, name: str, number: int) -> None:
        hook = {"webhook": {"url": self.receiver.url, "events": ["finished"]}}
        self.client.enqueue(id=name, **ASKED[number], **hook)
        self.took(name, number)
        time.sleep(0.05)

    def by_job(self, name: str, number: int) -> None:
        body = {"id": name, **ASKED[number]}
        refuse(httpx.post(f"{self.node.url}/v1/jobs", json=body, timeout=TIMEOUT_S))
        self.took(name, number)
        time.sleep(0.05)

    def by_sse(self, name: str, number: int) -> None:
        """The answer must come whole, whatever happens to the store meanwhile."""
        body = {**ASKED[number], "stream": True}
        url, text, done = f"{self.node.url}/v1/completions", "", False
        begin = time.monotonic()
        with httpx.stream("POST", url, json=body, timeout=TIMEOUT_S) as told:
            if told.status_code != 200:
                told.read()
            refuse(told)
            self.accepted_at.append(time.monotonic())
            for line in told.iter_lines():
                done = done or line == "data: [DONE]"
                if line.startswith("data: {"):
                    text += piece(line)
        self.streamed_s.append(time.monotonic() - begin)
        if not done or text != self.calm[number].text:
            self.broken.append(f"{name}: done {done}, {text!r} for {self.calm[number].text!r}")

    def gap_s(self, since: float, until: float) -> float:
        """The longest time in which no door took anything."""
        times = [since, *(at for at in self.accepted_at if since < at < until), until]
        return max(b - a for a, b in pairwise(times))

    def all_ended_s(self, until: float) -> float:
        """How long after the last one was asked for all had ended, by the record."""
        ends = (self.node.store.job(name)["ended_ms"] for name in self.accepted)
        behind_ms = time.time() * 1000 - max(ends)
        return max(0.0, time.monotonic() - until - behind_ms / 1000)

    def check(self) -> None:
        """Every accepted request has ended once, undisturbed, and its webhook has told of it."""
        for name, number in dict(self.accepted).items():
            job, calm = ended(self.node, name), self.calm[number]
            assert job["status"] == "finished", (name, job)
            token_ids, text = self.node.journalled(name)
            assert (token_ids, text) == (calm.token_ids, calm.text), name
            if name.startswith("by_stream"):
                self.check_webhook(name, calm)
        assert self.broken == []

    def check_webhook(self, name: str, calm: Answer) -> None:
        """At least once, and whenever it comes it says the same."""
        events = wait_for(lambda: self.receiver.of(name), f"webhook of {name}")
        assert len({webhook_id for webhook_id, _ in events}) == 1
        assert {event["data"]["text"] for _, event in events} == {calm.text}


class Refused(Exception):
    """A door said that it takes nothing now."""


def refuse(answer: httpx.Response) -> None:
    """Raises Refused for 503; any other refusal is a fault."""
    if answer.status_code == 503:
        raise Refused(answer.json()["error"]["code"])
    assert answer.status_code in (200, 202), answer.text


def piece(line: str) -> str:
    told: Mapping[str, Any] = httpx.Response(200, text=line.removeprefix("data: ")).json()
    assert "error" not in told, told
    return "".join(choice["text"] for choice in told["choices"])


def converse(node: Node, session: str, turn: str) -> str:
    """One turn over HTTP, asked again by the same id while the store is away."""
    body = {"id": f"{session}-{turn[5]}", "session_id": session, "max_tokens": 24, "temperature": 0}
    body["messages"] = [{"role": "user", "content": turn}]
    while True:
        try:
            refuse(httpx.post(f"{node.url}/v1/jobs", json=body, timeout=TIMEOUT_S))
        except Refused:
            time.sleep(RETRY_S)
        else:
            return str(ended(node, body["id"])["text"])


def ended(node: Node, request_id: str) -> dict[str, Any]:
    """The job once it has ended, also while its store moves."""

    def look() -> dict[str, Any] | None:
        job = node.store.job(request_id)
        return job if job and job["status"] in TERMINAL else None

    found: dict[str, Any] = wait_for(look, f"end of {request_id}\n{node.tail()}", TIMEOUT_S)
    return found
