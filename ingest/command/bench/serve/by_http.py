"""A load by HTTP: streamed completions, one connection each, as plain as a client can be.

A client of many layers would be what is measured; this one reads lines and looks at its clock.
"""

import asyncio
import json
from collections.abc import Sequence
from http.client import HTTPConnection
from typing import Any, Final
from urllib.parse import urlsplit

from ingest.command.bench.serve.drive import Clock
from ingest.command.bench.serve.load import Prompts
from ingest.command.bench.serve.record import Record
from router.simulator.workload import Wish
from workers.settings import settings

TIMEOUT_S: Final = 10.0
LINE_BYTES_MAX: Final = 1 << 20
SAMPLE: Final = "In the beginning God created the heaven and the earth. "  # whose ids are drawn


class ByHttp:
    """run: put before each id, so that two runs ask different requests."""

    def __init__(self, url: str, model: str, prompts: Prompts, run: str) -> None:
        parts = urlsplit(url)
        self.host, self.port = parts.hostname or "127.0.0.1", parts.port or 80
        self.model, self.prompts, self.run = model, prompts, run

    async def ask(self, wish: Wish, record: Record, clock: Clock) -> None:
        record.id = f"{self.run}-{wish.id}"
        body = {
            "model": self.model,
            "prompt": self.prompts.of(wish),
            "max_tokens": wish.max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            "sla": wish.sla,
            "id": record.id,
        }
        try:
            reader, writer = await asyncio.open_connection(
                self.host, self.port, limit=LINE_BYTES_MAX
            )
        except OSError as error:
            return record.fail(f"no connection: {error}")
        try:
            writer.write(self.message("POST", "/v1/completions", json.dumps(body).encode()))
            await self.read(reader, record, clock)
        except (OSError, ValueError, asyncio.IncompleteReadError) as error:
            record.fail(f"broken answer: {error}")
        finally:
            writer.close()
        return None

    def message(self, method: str, path: str, body: bytes) -> bytes:
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: {self.host}:{self.port}\r\nConnection: close\r\n"
            + "".join(f"{name}: {value}\r\n" for name, value in key_headers().items())
            + f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body

    async def read(self, reader: asyncio.StreamReader, record: Record, clock: Clock) -> None:
        """Raises ValueError, or what a broken connection raises."""
        status = int((await reader.readline()).split(b" ")[1])
        headers = {}
        while (line := await reader.readline()).strip():
            name, _, value = line.decode().partition(":")
            headers[name.strip().lower()] = value.strip()
        if status != 200:
            error = json.loads(await reader.read())["error"]
            retry = headers.get("retry-after")
            return record.fail(error.get("code"), float(retry) if retry else None)
        while line := await reader.readline():
            if line.startswith(b"data: {"):
                self.note(json.loads(line[6:]), record, clock.now())
            elif line.startswith(b"data: [DONE]"):
                record.end_s = clock.now()
                if record.status == "unanswered":
                    record.status = "finished"
                return None
        raise ValueError("it ended early")

    def note(self, chunk: dict[str, Any], record: Record, now_s: float) -> None:
        """One chunk of the stream: text, the usage, or why there is no more."""
        if "error" in chunk:
            record.fail(chunk["error"].get("code"))
            return
        if any(choice.get("text") for choice in chunk["choices"]):
            record.tokens_s.append(now_s)
        if usage := chunk.get("usage"):
            record.output_tokens = usage["completion_tokens"]
        if said := chunk.get("lockstep"):
            record.digest, record.server_ms = said["digest"], said["ttft_ms"]
            if not record.tokens_s:  # an answer without any text
                record.tokens_s.append(now_s)

    async def close(self, left: Sequence[Record]) -> None:
        """The node cancels what nobody reads any more."""

    def look(self, records: Sequence[Record]) -> None:
        """What the node says of where each one ran."""
        for record in records:
            status, job = ask(self.host, self.port, "GET", f"/v1/jobs/{record.id}")
            if status == 200:
                record.pool, record.plan = job.get("pool"), job.get("plan")
                record.predicted_ms = job.get("predicted_ttft_ms")
                record.moves = job.get("moves", 0)


def key_headers() -> dict[str, str]:
    """What shows the door LOCKSTEP_API_KEY; none without one."""
    key = settings().api_key
    return {"Authorization": f"Bearer {key}"} if key else {}


def ask(host: str, port: int, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    """One exchange: status, and the answer's JSON. Raises OSError."""
    connection = HTTPConnection(host, port, timeout=TIMEOUT_S)
    try:
        raw_body = None if body is None else json.dumps(body)
        connection.request(method, path, raw_body, key_headers())
        response = connection.getresponse()
        raw = response.read()
        return response.status, json.loads(raw) if raw.startswith(b"{") else None
    finally:
        connection.close()


def sample_ids(host: str, port: int) -> list[int]:
    """Ids that occur in text, of the served model. Raises OSError, ValueError."""
    status, answer = ask(host, port, "POST", "/v1/tokenize", {"prompt": SAMPLE})
    if status != 200:
        raise ValueError(f"/v1/tokenize answered {status}")
    return sorted(set(answer["tokens"]))
