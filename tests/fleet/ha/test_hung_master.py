"""A master that hangs ends no connection: whoever waits there for news must leave by himself."""

import asyncio

import pytest
from redis.exceptions import RedisError

from ingest.tokens import TokenReader, cancelled
from tests.fleet.ha.servers import wait_for
from workers.master.client import StoreClients
from workers.wire import Keys

pytestmark = pytest.mark.slow


class Moving:
    """Two servers, and what knows which of them is the master."""

    def __init__(self, servers) -> None:
        self.first, self.second = servers
        self.now = self.first
        self.url = f"redis://127.0.0.1:{self.first.port}/0"

    def follow(self, clients: StoreClients) -> StoreClients:
        clients.master.ask = lambda _: ("127.0.0.1", self.now.port)
        return clients

    def hang(self) -> None:
        self.first.hang()
        self.second.redis.replicaof("NO", "ONE")
        self.now = self.second


@pytest.fixture
def moving(pair):
    return Moving(pair)


def test_a_subscription_comes_to_the_new_master_once_anybody_has_found_it(moving):
    clients = moving.follow(StoreClients(moving.url, "lockstep"))
    client = clients.client(1.0)
    heard = clients.client(1.0).pubsub(ignore_subscribe_messages=True)
    heard.subscribe("news")
    wait_for(lambda: heard.get_message() is None and client.pubsub_numsub("news")[0][1], "heard")
    moving.hang()
    with pytest.raises(RedisError):
        client.ping()  # in time: the next one goes elsewhere
    assert client.ping()
    wait_for(lambda: heard.get_message() is None and moving.second.redis.pubsub_channels(), "there")
    client.publish("news", "x")
    assert wait_for(lambda: heard.get_message(timeout=0.1), "a message")["data"] == b"x"
    heard.close()


@pytest.mark.parametrize("comes", ["nobody", "another"])
def test_listeners_at_a_hung_master_get_all_tokens_of_the_new_one(moving, comes):
    keys = Keys("lockstep")

    def write(server, request_id, index):
        fields = {"token": index, "text": str(index), "digest": "0"}
        server.redis.xadd(keys.tokens(request_id), fields, id=f"0-{index + 1}")

    async def first_of(events):
        return [entry_id for entry_id, _ in await anext(events)]

    async def listen():
        reader = TokenReader(moving.url, keys)
        moving.follow(reader.clients)
        running = asyncio.create_task(reader.run())
        try:
            events = reader.listen("a")
            write(moving.first, "a", 0)
            assert await first_of(events) == ["0-1"]
            waiting = asyncio.create_task(first_of(events))
            await asyncio.sleep(0.2)  # it is in its read
            wait_for(lambda: moving.second.redis.xlen(keys.tokens("a")) == 1, "replicated")
            moving.hang()
            write(moving.second, "a", 1)
            write(moving.second, "b", 0)
            if comes == "another":
                assert await first_of(reader.listen("b")) == ["0-1"]
            assert await waiting == ["0-2"]
        finally:
            await cancelled(running)

    asyncio.run(asyncio.wait_for(listen(), 18))  # a read ends by itself after 20 s
