"""The load of a soak: so many jobs at once, each followed by the next one when its end is seen.

    by stream    XADD; its status is looked up twice a second
    by webhook   XADD; its end is what is posted to a receiver here
    by HTTP      a streamed answer, read to its last byte

Who they are follows from a seed. Some belong to conversations, each of which is deleted after a few
turns and begins anew, so that their number stays the same.
"""

import asyncio
import json
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

import msgpack

from workers.store import Store
from workers.wire import TERMINAL

WAYS: Final = {"stream": 0.6, "webhook": 0.25, "http": 0.15}
CLASSES: Final = {"realtime": 0.1, "standard": 0.6, "batch": 0.3}
SESSION_PART: Final = 0.1  # of the jobs by stream
TURNS: Final = 3  # of a conversation
TOKENS: Final = (2, 16)  # of an answer
WORDS: Final = (3, 8)  # of a prompt
VOCABULARY: Final = ("what", "is", "a", "the", "capital", "of", "and", "how", "many")
LOOK_S: Final = 0.5
REFUSED_S: Final = 1.0  # until a refused client asks again
DRAIN_S: Final = 240.0  # for what is under way when the load ends


@dataclass(frozen=True, slots=True)
class Record:
    """One job.   at_s: sent, from the start; seconds: until its end was seen; end: how it ended"""

    at_s: float
    seconds: float
    way: str
    sla: str
    end: str


@dataclass
class Load:
    """concurrent: jobs at once.   sessions: conversations that go on at a time"""

    store: Store
    port: int
    concurrent: int
    sessions: int
    seed: int
    records: list[Record] = field(default_factory=list)
    repeated: int = 0  # webhooks that were posted again

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.number = 0
        self.waiting: dict[str, asyncio.Future[str]] = {}  # by stream: id to its end
        self.hooked: dict[str, asyncio.Future[str]] = {}
        self.posted: Counter[str] = Counter()
        self.free = [(f"soak-s{n}", 0) for n in range(self.sessions)]  # with turns so far
        self.receiver = ""

    async def run(self, seconds: float) -> int:
        """Gives how many jobs did not end within DRAIN_S after the load did."""
        loop = asyncio.get_running_loop()
        self.began = loop.time()
        server = await asyncio.start_server(self.receive, "127.0.0.1", 0)
        self.receiver = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        looking = asyncio.create_task(self.look())
        clients = [asyncio.create_task(self.client(seconds)) for _ in range(self.concurrent)]
        _, late = await asyncio.wait(clients, timeout=seconds + DRAIN_S)
        for task in (*late, looking):
            task.cancel()
        server.close()
        return len(late)

    async def client(self, seconds: float) -> None:
        """One job after the other."""
        loop = asyncio.get_running_loop()
        while (at_s := loop.time() - self.began) < seconds:
            way, sla = self.drawn(WAYS), self.drawn(CLASSES)
            end = await getattr(self, f"by_{way}")(sla)
            self.records.append(Record(at_s, loop.time() - self.began - at_s, way, sla, end))
            if end != "finished":
                await asyncio.sleep(REFUSED_S)

    def drawn(self, parts: dict[str, float]) -> str:
        return self.random.choices(list(parts), list(parts.values()))[0]

    def asked(self) -> dict[str, Any]:
        words = self.random.choices(VOCABULARY, k=WORDS[1])
        return {
            "prompt": " ".join(words[: self.random.randint(*WORDS)]),
            "max_tokens": self.random.randint(*TOKENS),
        }

    async def by_stream(self, sla: str) -> str:
        if not self.free or self.random.random() > SESSION_PART:
            return await self.sent(sla, self.asked(), self.waiting)
        name, turns = self.free.pop()
        body = self.asked()
        body["messages"] = [{"role": "user", "content": body.pop("prompt")}]
        end = await self.sent(sla, {**body, "session_id": name}, self.waiting)
        if turns + 1 >= TURNS:
            await self.http("DELETE", f"/v1/sessions/{name}", None)
        self.free.insert(0, (name, (turns + 1) % TURNS))
        return end

    async def by_webhook(self, sla: str) -> str:
        body = {**self.asked(), "webhook": {"url": self.receiver}}
        return await self.sent(sla, body, self.hooked)

    async def sent(self, sla: str, body: dict[str, Any], where: dict[str, Any]) -> str:
        self.number += 1
        request_id = f"soak-{self.seed}-{self.number}"
        where[request_id] = future = asyncio.get_running_loop().create_future()
        packed = msgpack.packb({**body, "id": request_id})
        add = self.store.redis.xadd
        await asyncio.to_thread(add, self.store.keys.requests(sla), {"m": packed})
        end: str = await future
        return end

    async def by_http(self, sla: str) -> str:
        body = {**self.asked(), "stream": True, "sla": sla}
        status, answer = await self.http("POST", "/v1/completions", body)
        if status == 200:
            return "finished" if answer.endswith(b"[DONE]\n\n") else "cut off"
        return str(json.loads(answer)["error"]["code"]) if answer else str(status)

    async def http(self, method: str, path: str, body: Any) -> tuple[int, bytes]:
        """One exchange on a connection of its own."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        raw = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(raw)}\r\n\r\n".encode() + raw)
        try:
            answer = await reader.read(-1)
        finally:
            writer.close()
        begin, _, rest = answer.partition(b"\r\n\r\n")
        words = begin.split()
        return int(words[1]) if len(words) > 1 else 0, rest

    async def look(self) -> None:
        """Finds the ends of jobs by stream."""
        while True:
            await asyncio.sleep(LOOK_S)
            ids = list(self.waiting)
            for request_id, end in zip(ids, await asyncio.to_thread(self.ends, ids), strict=True):
                if end is not None:
                    self.waiting.pop(request_id).set_result(end)

    def ends(self, ids: list[str]) -> list[str | None]:
        """How each ended; None: it has not."""
        with self.store.redis.pipeline(transaction=False) as pipeline:
            for request_id in ids:
                pipeline.hmget(self.store.keys.job(request_id), ["status", "code"])
            found = pipeline.execute()
        ended = []
        for status, code in found:
            is_over = status is not None and status.decode() in TERMINAL
            ended.append((code or status).decode() if is_over else None)
        return ended

    async def receive(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Webhooks, until the connection is closed."""
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
                self.heard(json.loads(await reader.readexactly(length))["data"])
                writer.write(b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n")
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    def heard(self, data: dict[str, Any]) -> None:
        future = self.hooked.pop(data["id"], None)
        if future is None:
            self.repeated += 1
        elif not future.done():
            error = data.get("error") or {}
            code = error.get("code") if isinstance(error, dict) else data.get("code")
            future.set_result(str(code or data["status"]))
