"""Seeded clients: all classes and doors, sessions, forks, cancels, promotions, webhooks, deadlines.

What a client sends, and what it does to it, is drawn from its seed; when it arrives is the world's.
A client insists: it tries again until the node has said yes, and only then a request is accepted.
"""

import json
import random
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx
import msgspec
from redis.exceptions import RedisError

from tests.chaos.node import ChaosNode
from workers.store import Store
from workers.wire import END_ENTRY_ID, SLA_CLASSES, TERMINAL, Keys

KINDS = 24  # different prompts; what they become is computed once
PACE_S = 0.16  # of one client, on average
PATIENCE_S = 90.0
STORY = "Tell me about a lighthouse keeper and the sea. "
DEEDS = ("cancel", "promote", "promote", "move", "double", "follow", "delete", "fork", "-", "-")
DOORS = ("jobs", "fields", "map", "chat")
GONE = "gone"  # the session that is deleted again and again


COME_AGAIN = defaultdict(tuple)  # by HTTP status: codes of refusals that say when to ask again
COME_AGAIN[503] = ("store_away", "store_full", "stopping", "model_loading", "not_ready")
COME_AGAIN[429] = ("overloaded", "queue_full")


class Impatient(Exception):
    """The node did not take something for too long."""


@dataclass(frozen=True)
class Asked:
    """A request that the node has accepted; hook: it has a webhook."""

    id: str
    sla: str
    session: str | None
    hook: bool
    deadline: bool
    body: dict[str, Any]


@dataclass
class Record:
    """What the clients of a run did; the checks hold the node to it.

    meddled   ids that somebody tried to cancel, or left
    poison    ids that kill whoever starts them
    bad       ids of what was sent to be refused
    forked    sessions by the ones that they were forked from
    followed  text as it came by server-sent events, by id
    wrong     what clients saw that should not be
    """

    asked: dict[str, Asked] = field(default_factory=dict)
    meddled: set[str] = field(default_factory=set)
    poison: set[str] = field(default_factory=set)
    bad: set[str] = field(default_factory=set)
    forked: dict[str, str] = field(default_factory=dict)
    followed: dict[str, str] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def note(self, what: str) -> None:
        """Something that should not be; once is enough."""
        if what not in self.wrong:
            self.wrong.append(what)


def insist(action: Callable[[], Any], what: str) -> Any:
    """What the action gives, as soon as the node answers. Raises Impatient."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        try:
            value = action()
        except (RedisError, httpx.HTTPError):
            value = None
        if value is not None:
            return value
        time.sleep(0.05)
    raise Impatient(what)


class Client(threading.Thread):
    """One of those who ask; until: set when it is enough."""

    def __init__(
        self, node: ChaosNode, record: Record, seed: int, number: int, hook_url: str
    ) -> None:
        super().__init__(daemon=True, name=f"client-{number}")
        self.node, self.record, self.hook_url = node, record, hook_url
        self.number, self.prefix = number, f"s{seed}-{number}"
        self.own, self.shared = f"own-{self.prefix}", [f"shared-{seed}-{n}" for n in range(2)]
        self.chance = random.Random(f"{seed} client {number}")
        self.enough = threading.Event()
        self.sent = 0
        self.mine: list[str] = []
        self.last_of_own: str | None = None
        self.http = httpx.Client(base_url=node.url, timeout=20)
        port = node.to_store.port if node.is_linked else node.store_port
        self.store = Store(f"redis://127.0.0.1:{port}/0", Keys("nodetest"), timeout_s=4.0)
        self.helpers: list[threading.Thread] = []

    def run(self) -> None:
        try:
            while not self.enough.is_set():
                self.ask()
                self.meddle()
                self.enough.wait(self.chance.uniform(0, 2 * PACE_S))
            for helper in self.helpers:
                helper.join(PATIENCE_S)
        except Exception:
            self.record.note(f"{self.name}: {traceback.format_exc()[-600:]}")

    # --- asking ---

    def ask(self) -> None:
        self.sent += 1
        request_id = f"{self.prefix}-{self.sent:04}"
        session, door = self.draw_session(), self.chance.choice(DOORS)
        sla = self.chance.choice(SLA_CLASSES)
        body = self.turn(request_id) if session else self.kind()
        if session:
            body["session_id"] = session
        if hook := self.chance.random() < 0.4:
            body["webhook_url"] = self.hook_url
        if deadline := self.chance.random() < 0.1:
            body["deadline_ms"] = self.chance.choice([50, 400, 2000])
        asked = Asked(request_id, sla, session, hook, deadline, body)
        self.send(asked, door)
        if session == self.own:
            self.last_of_own = request_id

    def draw_session(self) -> str | None:
        """Its own one turn after the other; others with whoever else comes."""
        drawn = self.chance.random()
        if drawn < 0.25:
            return self.own if self.has_ended(self.last_of_own) else None
        if drawn < 0.35:
            return self.chance.choice(self.shared)
        return GONE if drawn < 0.38 else None

    def kind(self) -> dict[str, Any]:
        number = self.chance.randrange(KINDS)
        drawn = random.Random(number)
        prompt = STORY * drawn.choice([0, 0, 1, 5, 12]) + f"Fact number {number}:"
        length = drawn.choice([1, 4, 40, 160, 400])
        body = {"prompt": prompt, "max_tokens": length, "seed": number}
        return body | {"temperature": drawn.choice([0, 0.8])}

    def turn(self, request_id: str) -> dict[str, Any]:
        said = f"Say {request_id}. " * self.chance.choice([1, 1, 8])
        messages = [{"role": "user", "content": said}]
        tokens = self.chance.choice([1, 6, 30, 90])
        return {"messages": messages, "max_tokens": tokens, "temperature": 0.8, "seed": self.sent}

    def send(self, asked: Asked, door: str) -> None:
        """By one of the doors, until it is accepted."""
        if door == "chat" and "messages" in asked.body:
            self.record.meddled.add(asked.id)  # a client that leaves cancels
            self.record.asked[asked.id] = asked
            helper = threading.Thread(target=self.chat, args=(asked,), daemon=True)
            helper.start()
            self.helpers.append(helper)
            self.mine.append(asked.id)
            return
        way = {"fields": self.by_fields, "map": self.by_map}.get(door, self.by_http)
        if insist(lambda: way(asked), asked.id) != "refused":
            self.record.asked[asked.id] = asked
            self.mine.append(asked.id)

    def by_http(self, asked: Asked) -> str | None:
        return self.posted("/v1/jobs", asked, {"id": asked.id, "sla": asked.sla, **asked.body})

    def chat(self, asked: Asked) -> None:
        """The door of those who wait for the answer."""
        body = {"id": asked.id, "sla": asked.sla, **asked.body}
        try:
            insist(lambda: self.posted("/v1/chat/completions", asked, body), asked.id)
        except Impatient as error:
            self.record.note(f"chat {error}: no answer")

    def posted(self, path: str, asked: Asked, body: dict[str, Any]) -> str | None:
        """None: it is to come again; "refused": it is not taken, and with good reason."""
        answer = self.http.post(path, json=body)
        code = code_of(answer)
        if "retry-after" in answer.headers and code in COME_AGAIN[answer.status_code]:
            return None
        is_end = path != "/v1/jobs" and answer.status_code != 500  # of the request, as it is told
        if code == "impossible_deadline" and asked.deadline:
            return "refused"
        if answer.status_code not in (200, 202) and not is_end:
            self.record.note(f"{path} {asked.id}: {answer.status_code} {answer.text}")
            return None if answer.status_code == 500 else "refused"
        return "accepted"

    def by_fields(self, asked: Asked) -> str:
        pairs = {"id": asked.id, **asked.body}
        words = [
            json.dumps(value) if isinstance(value, list | dict) else str(value)
            for pair in pairs.items()
            for value in pair
        ]
        return self.add(asked.sla, *words)

    def by_map(self, asked: Asked) -> str:
        return self.add(asked.sla, "m", msgspec.msgpack.encode({"id": asked.id, **asked.body}))

    def add(self, sla: str, *words: str | bytes) -> str:
        stream = self.store.keys.requests(sla)
        entry: bytes = self.store.redis.execute_command("XADD", stream, "*", *words)
        return entry.decode()

    def has_ended(self, request_id: str | None) -> bool:
        if request_id is None:
            return True
        try:
            job = self.node.store.job(request_id)
        except RedisError:
            return False
        return job is not None and job["status"] in TERMINAL

    # --- what clients do to what they asked ---

    def meddle(self) -> None:
        deed = self.chance.choice(DEEDS)
        act = getattr(self, deed, None)
        if act is None or not self.mine:
            return
        with suppress(RedisError, httpx.HTTPError):  # nobody insists on these
            act(self.chance.choice(self.mine[-12:]))

    def cancel(self, request_id: str) -> None:
        self.record.meddled.add(request_id)
        if self.chance.random() < 0.5:
            self.http.delete(f"/v1/jobs/{request_id}")
        else:
            self.store.cancel(request_id)

    def promote(self, request_id: str) -> None:
        body = {"sla": self.chance.choice(SLA_CLASSES)}
        answer = self.http.post(f"/v1/jobs/{request_id}/promote", json=body)
        if answer.status_code not in (200, 404, 409, 503):
            self.record.note(f"promote {request_id}: {answer.status_code} {answer.text}")

    def move(self, request_id: str) -> None:
        self.store.move(request_id, self.chance.choice(["cpu", "gpu"]))

    def double(self, request_id: str) -> None:
        """Sent again, by a door of its own: the first one stands."""
        asked = self.record.asked[request_id]
        way = self.chance.choice([self.by_fields, self.by_map, self.by_http])
        way(asked)

    def delete(self, _: str) -> None:
        answer = self.http.delete(
            f"/v1/sessions/{GONE}", params={"force": self.chance.choice(["true", "false"])}
        )
        if answer.status_code not in (200, 204, 404, 409, 503):
            self.record.note(f"delete {GONE}: {answer.status_code} {answer.text}")

    def fork(self, _: str) -> None:
        """Once a run: the command is a process, and slow to start."""
        if self.number or self.own in self.record.forked.values() or self.chance.random() < 0.6:
            return
        target = f"fork-{self.own}"
        self.record.forked[target] = self.own
        self.helpers.append(threading.Thread(target=self.fork_and_go_on, args=(target,)))
        self.helpers[-1].start()

    def fork_and_go_on(self, target: str) -> None:
        done = self.node.command("session", "fork", self.own, target)
        if done.returncode:  # no first turn yet
            del self.record.forked[target]
            return
        for number in range(2):
            request_id = f"{self.prefix}-fork{number}"
            body = {"messages": [{"role": "user", "content": f"Say {request_id}."}]}
            body |= {"max_tokens": 6, "temperature": 0, "session_id": target}
            asked = Asked(request_id, "standard", target, False, False, body)
            try:
                insist(lambda asked=asked: self.by_http(asked), request_id)
            except Impatient as error:
                self.record.note(f"fork {error}: not taken")
                return
            self.record.asked[request_id] = asked

    def follow(self, request_id: str) -> None:
        """Read its events to the end, and come back after each cut where it was."""
        if request_id in self.record.followed:
            return
        self.record.followed[request_id] = ""
        follower = threading.Thread(target=self.follow_to_end, args=(request_id,), daemon=True)
        self.helpers.append(follower)
        follower.start()

    def follow_to_end(self, request_id: str) -> None:
        last, end = "0-0", time.monotonic() + PATIENCE_S
        url = f"{self.node.url}/v1/jobs/{request_id}/events"
        while time.monotonic() < end and last != END_ENTRY_ID:
            try:
                with httpx.stream("GET", url, headers={"Last-Event-ID": last}, timeout=5) as answer:
                    for entry_id, text in events(answer.iter_lines()):
                        last = entry_id
                        self.record.followed[request_id] += text
            except httpx.HTTPError:
                pass
            time.sleep(0.05)
        if last != END_ENTRY_ID:
            del self.record.followed[request_id]  # no end was told: the checks say so of its job


def events(lines: Iterator[str]) -> Iterator[tuple[str, str]]:
    """(entry id, text) of each whole event."""
    seen: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        seen[name] = value.strip()
        if not line and "id" in seen and "data" in seen:
            yield seen["id"], json.loads(seen["data"]).get("text", "")
        if not line:
            seen = {}


def code_of(answer: httpx.Response) -> str | None:
    """The code of an error object."""
    try:
        error = answer.json().get("error") or {}
    except ValueError:
        return None
    return error.get("code") if isinstance(error, dict) else None
