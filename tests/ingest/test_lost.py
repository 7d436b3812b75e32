"""A store that fails over may lose a request that somebody waits for: that is an end, too."""

import asyncio
import json

import httpx
import pytest

from ingest.async_client import AsyncClient
from tests.ingest.stub_node import Play


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """A listener looks soon whether there still is such a request."""
    monkeypatch.setattr("ingest.tokens.SILENCE_S", 0.1)


def test_a_streamed_answer_ends_with_the_reason(door, node):
    node.play = Play(pause_after=1)
    body = {"prompt": "x", "stream": True}
    with httpx.stream("POST", f"{door.base}/v1/completions", json=body, timeout=20) as told:
        lines = (line for line in told.iter_lines() if line.startswith("data: {"))
        next(lines)
        door.desk.store.redis.flushall()
        error = json.loads(list(lines)[-1].removeprefix("data: "))["error"]
    assert error["code"] == "lost" and "ask again" in error["message"]


def test_an_answer_as_a_whole_is_503(door, node, wait_until):
    node.play = Play(pause_after=1)

    async def ask():
        async with httpx.AsyncClient(base_url=door.base, timeout=20) as http:
            asking = asyncio.create_task(http.post("/v1/completions", json={"prompt": "x"}))
            while not door.desk.store.redis.keys("*:tokens:*"):
                await asyncio.sleep(0.01)
            door.desk.store.redis.flushall()
            return await asking

    answer = asyncio.run(ask())
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "lost")


def test_events_of_a_job_end_for_who_follows_them(door, node, wait_until):
    node.play = Play(pause_after=1)
    job = httpx.post(f"{door.base}/v1/jobs", json={"prompt": "x"}, timeout=20).json()
    with httpx.stream("GET", f"{door.base}/v1/jobs/{job['id']}/events", timeout=20) as told:
        lines = (line for line in told.iter_lines() if line.startswith("data: {"))
        next(lines)
        door.desk.store.redis.flushall()
        end = json.loads(list(lines)[-1].removeprefix("data: "))
    assert (end["status"], end["error"]["code"]) == ("failed", "lost")


def test_what_no_router_has_read_is_not_lost(redis_url, text):
    """Nobody but its sender knows of it, and it has no record yet."""

    async def wait():
        async with AsyncClient(redis_url, "lockstep") as client:
            request_id = await client.enqueue(prompt="x")
            with pytest.raises(TimeoutError):
                await client.result(request_id, timeout_s=0.5)

    asyncio.run(wait())
