"""The client for asyncio: many streams at once, over one connection."""

import asyncio

import pytest

from ingest.async_client import AsyncClient
from tests.ingest.stub_node import Play, StubNode
from workers.store import Store
from workers.wire import EndEvent, Keys, TokenEvent


@pytest.fixture
def node(redis_url, text):
    with StubNode(Store(redis_url, Keys("lockstep")), text) as node:
        yield node


@pytest.fixture
def run(redis_url):
    """run(work): work(client) in an event loop of its own."""

    def run(work):
        async def whole():
            async with AsyncClient(redis_url, "lockstep") as client:
                return await asyncio.wait_for(work(client), 20)

        return asyncio.run(whole())

    return run


async def heard(client, request_id, **options):
    return [event async for event in client.stream(request_id, **options)]


def test_a_result_is_the_whole_text_with_its_end(run, node):
    async def work(client):
        request_id = await client.enqueue(prompt="x", id="mine", sla="batch")
        end = await client.result(request_id, timeout_s=10)
        return end, await client.job("mine")

    end, job = run(work)
    assert (end.status, end.text, end.finish_reason) == ("finished", " Paris, of course.", "stop")
    assert job["sla"] == "batch"


def test_many_streams_come_over_one_connection(run, node):
    async def work(client):
        ids = [await client.enqueue(prompt="x") for _ in range(20)]
        streams = [heard(client, request_id, timeout_s=10) for request_id in ids]
        told = await asyncio.gather(*streams)
        clients = await asyncio.to_thread(client.client.store.redis.client_list)
        return told, [one for one in clients if one["cmd"] == "xread"]

    told, reading = run(work)
    for events in told:
        assert [type(event) for event in events] == [TokenEvent] * 4 + [EndEvent]
        assert "".join(event.text for event in events) == " Paris, of course."
    assert len(reading) <= 1


def test_a_stream_begins_behind_an_entry(run, node):
    async def work(client):
        request_id = await client.enqueue(prompt="x")
        await client.result(request_id, timeout_s=10)
        return await heard(client, request_id, after="0-3", timeout_s=10)

    assert [event.text for event in run(work)] == [".", ""]


def test_a_result_that_does_not_come_times_out(run):
    with pytest.raises(TimeoutError, match=r"nobody: nothing for 0\.05 s"):
        run(lambda client: client.result("nobody", timeout_s=0.05))


def test_a_stream_that_has_expired_gives_its_end(run, node):
    async def work(client):
        request_id = await client.enqueue(prompt="x")
        await client.result(request_id, timeout_s=10)
        client.client.store.redis.delete(f"lockstep:tokens:{request_id}")
        return await heard(client, request_id), await client.result(request_id, timeout_s=1)

    events, end = run(work)
    assert [event.text for event in events] == [end.text] == [" Paris, of course."]


def test_a_request_is_cancelled_and_promoted_wherever_it_is(run, node, wait_until):
    node.play = Play(pause_after=1)

    async def work(client):
        request_id = await client.enqueue(prompt="x")
        stream = client.stream(request_id, timeout_s=10)
        first = await anext(stream)
        promoted = await client.promote(request_id, "realtime")
        outcome = await client.cancel(request_id)
        rest = [event async for event in stream]
        return first, promoted, outcome, rest

    first, promoted, outcome, rest = run(work)
    assert isinstance(first, TokenEvent) and promoted.result == "promoted"
    assert outcome == "cancelling" and rest[-1].status == "cancelled"


def test_what_is_wrong_is_an_error_at_once(run):
    with pytest.raises(ValueError, match="sla: must be one of"):
        run(lambda client: client.enqueue(prompt="x", sla="urgent"))
