"""Clients on a real Cluster, and beside a master that becomes a replica."""

import asyncio

import pytest
import redis.asyncio
from redis import Redis
from redis.exceptions import ConnectionError as StoreAway
from redis.exceptions import MovedError, ResponseError

from ingest.command.doctor import store as doctor
from ingest.command.start import redis_problems
from tests.fleet.ha.servers import wait_for
from workers.master.address import BadUrl
from workers.master.client import StoreClients
from workers.master.connection import NotTheMaster
from workers.settings import Settings
from workers.store import Store
from workers.store_client import NotReplicated
from workers.wire import Keys


def test_each_client_finds_who_serves_the_slot(cluster, clients):
    client = clients.client(2.0)
    assert client.set(f"{cluster.prefix}:a", 1)
    assert cluster.master().redis.get(f"{cluster.prefix}:a") == "1"


def test_a_plain_url_to_another_node_says_so(cluster):
    other = next(server for server in cluster.all if server.port != cluster.master().port)
    client = StoreClients(f"redis://127.0.0.1:{other.port}", cluster.prefix).client(2.0)
    with pytest.raises(NotTheMaster, match=f"{other.port} says: MOVED .*:{cluster.master().port}"):
        client.get(f"{cluster.prefix}:a")


def test_keys_of_many_slots_are_refused_before_anything_is_asked(cluster):
    with pytest.raises(BadUrl, match=r"\{lockstep\}"):
        Store(cluster.url, Keys("lockstep"))


def test_a_script_does_not_run_where_its_keys_are_not(store, cluster):
    """Each declares one: a server that lost the slot refuses before anything is done."""
    with pytest.raises(AssertionError):
        store.run("reap", [], "cpu", 4, 64)
    other = next(server for server in cluster.all if server.port != cluster.master().port)
    with pytest.raises(MovedError):
        other.redis.eval("return redis.call('SET', KEYS[1], 1)", 1, store.keys.active)


def test_a_script_may_touch_what_it_does_not_declare_in_the_same_slot(store, cluster):
    touch = "return redis.call('SET', '{lockstep}:undeclared', ARGV[1])"
    assert store.redis.eval(touch, 1, store.keys.active, "1") == b"OK"
    elsewhere = next(name for name in map(str, range(100)) if not cluster.master().serves(name))
    with pytest.raises(ResponseError, match="non local key"):
        store.redis.eval(touch.replace("{lockstep}", elsewhere), 1, store.keys.active, "1")


def test_control_messages_reach_who_listens_at_any_node(store, cluster):
    other = next(server for server in cluster.all if server.port != cluster.master().port)
    listener = other.redis.pubsub(ignore_subscribe_messages=True)
    listener.subscribe(store.keys.control)
    wait_for(lambda: listener.get_message() is None and listener.subscribed, "subscribed")
    store.redis.publish(store.keys.control, "cancel x")
    assert wait_for(lambda: listener.get_message(timeout=0.1), "a message")["data"] == "cancel x"
    listener.close()


def test_start_and_doctor_look_at_the_slots_master(cluster, free_port):
    assert list(redis_problems(cluster.url, cluster.prefix)) == []
    away = f"redis+cluster://127.0.0.1:{free_port()},127.0.0.1:{free_port()}"
    (problem,) = redis_problems(away, cluster.prefix)
    assert "no node of the Cluster" in problem and "Connection refused" in problem
    told = Settings(redis_url=cluster.url, key_prefix=cluster.prefix)
    names = [finding.name for finding in doctor.examine(told) if not finding.is_good]
    assert names == ["store-no-replica", "store-writes-alone"]


def test_doctor_says_when_more_replicas_are_asked_for_than_there_are(pair):
    url = f"redis://127.0.0.1:{pair[0].port}"
    for must, wrong in ((1, []), (2, ["2 of its 1 replicas must have a request"])):
        found = list(doctor.examine(Settings(redis_url=url, redis_replicas=must)))
        assert any(f"replicas: 1, asked for: {must}" in finding.what for finding in found)
        assert [one.what.partition(":")[0] for one in found if not one.is_good] == wrong


def clients_of(server) -> StoreClients:
    return StoreClients(f"redis://127.0.0.1:{server.port}", "lockstep")


def test_a_master_that_becomes_a_replica_is_left(pair):
    """Idle connections, too: each would fail once, and a door has forty."""
    first, second = pair
    clients = clients_of(first)
    client, waiting = clients.client(2.0), clients.client(2.0)
    kept = [client.connection_pool.get_connection() for _ in range(3)]
    for connection in kept:
        client.connection_pool.release(connection)
    assert client.set("a", 1) and waiting.get("a") == b"1"
    second.redis.replicaof("NO", "ONE")
    first.redis.replicaof("127.0.0.1", second.port)
    with pytest.raises(NotTheMaster, match="READONLY"):
        client.set("a", 2)
    with pytest.raises(NotTheMaster, match="is a replica"):
        waiting.get("a")
    first.redis.replicaof("NO", "ONE")  # as if its name led elsewhere now
    assert client.set("a", 3) and waiting.get("a") == b"3"


def test_an_idle_connection_of_an_event_loop_leaves_an_earlier_master(cluster, clients):
    """CLIENT UNBLOCK, by which a read learns of a new key, would be answered there for ever."""

    async def ask():
        client = redis.asyncio.Redis(connection_pool=clients.async_pool())
        ids = [await client.client_id(), await client.client_id()]
        clients.master.doubt(clients.master.term, is_other=True)
        ids.append(await client.client_id())
        await client.aclose()
        await client.connection_pool.disconnect()
        return ids

    before, same, after = asyncio.run(ask())
    assert before == same and after != before


def test_a_replica_is_no_place_to_read_tokens_from(pair):
    """It may follow nobody any more, and would be silent for ever."""

    async def read(server):
        pool = clients_of(server).async_pool(socket_timeout=2.0, protocol=2)
        connection = pool.make_connection()
        try:
            await connection.connect()
        finally:
            await connection.disconnect(nowait=True)

    asyncio.run(read(pair[0]))
    with pytest.raises(NotTheMaster, match="is a replica"):
        asyncio.run(read(pair[1]))


def test_a_master_that_may_take_nothing_is_away(pair):
    """NOREPLICAS: it may be cut off, and another one the master."""
    first, _ = pair
    first.redis.config_set("min-replicas-to-write", 2)
    client = clients_of(first).client(2.0)
    with pytest.raises(StoreAway, match="NOREPLICAS"):
        client.set("a", 1)
    assert client.get("a") is None
    first.redis.config_set("min-replicas-to-write", 0)
    assert client.set("a", 1)


def accept(store, request_id):
    return store.accept(request_id=request_id, tenant="default", sla="batch", body=b"\x80")


def test_a_request_is_accepted_when_a_replica_has_it(pair, monkeypatch):
    """Also by the second accept of an id, whose first one a replica has not heard of."""
    monkeypatch.setattr("workers.store_client.REPLICATED_MS", 300)
    first, second = pair
    store = Store(f"redis://127.0.0.1:{first.port}", Keys("t"), replicas=1)
    assert accept(store, "a").is_new
    assert second.redis.exists(store.keys.job("a"))
    second.hang()
    for _ in range(2):
        with pytest.raises(NotReplicated, match="0 of 1"):
            accept(store, "b")
    second.go_on()
    assert not accept(store, "b").is_new
    assert second.redis.exists(store.keys.job("b"))
    assert accept(Store(store.url, Keys("t")), "c").is_new


def test_a_server_that_is_no_master_at_first_is_asked_again(pair):
    assert Redis(port=pair[1].port).ping()
    client = clients_of(pair[1]).client(2.0)
    with pytest.raises(NotTheMaster):
        client.ping()
    pair[1].redis.replicaof("NO", "ONE")
    assert client.ping()
