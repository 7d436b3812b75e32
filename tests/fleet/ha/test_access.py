"""Passwords, users with few rights and TLS, on a Cluster and with Sentinels."""

import asyncio
import re
from pathlib import Path

import pytest
from redis.exceptions import RedisError

from ingest.client import Client
from ingest.command.doctor import store as doctor
from tests.fleet.ha.servers import PREFIX, Servers, free_ports, wait_for
from tests.ingest.stub_node import StubNode
from tests.security.test_redis import CERTIFICATE, TlsProxy
from workers.master.client import StoreClients
from workers.settings import Settings, shown_url
from workers.store import Store
from workers.wire import Keys

ROOT = Path(__file__).parents[3]
OF_STORE, OF_SENTINEL = "hunter2-of-the-store", "hunter2-of-sentinels"


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """One server and one Sentinel, each with a password of its own; the Sentinel's port."""
    servers = Servers(tmp_path_factory.mktemp("watched"))
    master, port = free_ports(2)
    servers.add("master", master, "--requirepass", OF_STORE, password=OF_STORE)
    (servers.folder / "sentinel").mkdir()
    (servers.folder / "sentinel" / "sentinel.conf").write_text(
        f"sentinel monitor main 127.0.0.1 {master} 1\n"
        f"sentinel auth-pass main {OF_STORE}\n"
        f"requirepass {OF_SENTINEL}\n"
    )
    conf = str(servers.folder / "sentinel" / "sentinel.conf")
    sentinel = servers.add("sentinel", port, conf, "--sentinel", password=OF_SENTINEL)
    wait_for(lambda: sentinel.redis.sentinel_masters()["main"]["flags"] == "master", "it watches")
    yield port
    servers.end()


def sentinel_url(port, of_store=OF_STORE, of_sentinel=OF_SENTINEL) -> str:
    return f"redis+sentinel://:{of_store}@127.0.0.1:{port}/main?sentinel_password={of_sentinel}"


def test_server_and_sentinel_have_passwords_of_their_own(watched):
    clients = StoreClients(sentinel_url(watched), "lockstep")
    assert clients.client(2.0).ping()
    for said in (repr(clients.url), repr(clients.client(2.0)), shown_url(sentinel_url(watched))):
        assert "hunter2" not in said


@pytest.mark.parametrize("url", [{"of_store": "wrong"}, {"of_sentinel": "wrong"}])
def test_a_wrong_password_is_told_as_one_and_not_told(watched, url):
    wrong = sentinel_url(watched, **url)
    with pytest.raises(RedisError, match=r"(?i)password|auth") as caught:
        StoreClients(wrong, "lockstep").client(2.0).ping()
    assert "hunter2" not in str(caught.value)
    (finding,) = doctor.examine(Settings(redis_url=wrong))
    assert finding.name in ("store-password", "store-unreachable")


def test_a_name_that_no_sentinel_knows_is_said(watched):
    url = sentinel_url(watched).replace("/main", "/other")
    with pytest.raises(RedisError, match="No master found for 'other'"):
        StoreClients(url, "lockstep").client(2.0).ping()


def users() -> dict[str, list[str]]:
    """The documented ones, for the prefix of a Cluster, and what docs/redis.md adds to them."""
    page = (ROOT / "docs/security.md").read_text()
    block = re.search(r"```acl\n(.+?)```", page, re.DOTALL)
    rules = {line.split()[1]: line.split()[2:] for line in block[1].splitlines()}
    more = re.search(r"`((?:\+[\w|]+ ?)+)`", (ROOT / "docs/redis.md").read_text())[1].split()
    told = {
        name: [rule.replace("lockstep:", f"{PREFIX}:") for rule in rules[name]] for name in rules
    }
    told["producer"] += more
    return told


def test_the_documented_users_need_no_more_on_a_cluster(cluster, text):
    for server in cluster.all:
        for name in ("producer", "node"):
            server.redis.execute_command("ACL", "SETUSER", name, *users()[name])
        server.redis.acl_log_reset()
    try:
        url = cluster.url.replace("//", "//{}:PASSWORD@")
        producer = Client(url.format("producer"), PREFIX)
        with StubNode(Store(url.format("node"), Keys(PREFIX)), text):
            request_id = producer.enqueue(prompt="Hello", max_tokens=3, patience_s=1)
            assert producer.result(request_id, timeout_s=30).status == "finished"
        for server in cluster.all:
            log = server.redis.acl_log()
            assert [f"{entry['username']}: {entry['object']}" for entry in log] == []
    finally:
        for server in cluster.all:
            server.redis.execute_command("ACL", "DELUSER", "producer", "node")


@pytest.fixture
def one_by_tls(tmp_path):
    """A Cluster of one node that is reached by TLS alone: its URL."""
    servers = Servers(tmp_path)
    (port,) = free_ports(1)
    proxy = TlsProxy(port)
    told = ("--cluster-announce-port", str(proxy.port), "--cluster-announce-hostname", "localhost")
    named = ("--cluster-preferred-endpoint-type", "hostname")
    server = servers.add("node", port, "--cluster-enabled", "yes", *told, *named)
    server.redis.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
    wait_for(lambda: server.redis.execute_command("CLUSTER INFO")["cluster_state"] == "ok", "ok")
    yield f"rediss+cluster://localhost:{proxy.port}"
    proxy.stop()
    servers.end()


def test_a_cluster_is_asked_and_used_by_tls(one_by_tls):
    """Whose nodes tell their names: certificates are checked against them."""
    told = Settings(redis_url=one_by_tls, redis_ca=CERTIFICATE, key_prefix=PREFIX)
    clients = StoreClients(told.url, PREFIX)
    assert clients.client(5.0).set(f"{PREFIX}:a", 1)

    async def read():
        connection = clients.async_pool(socket_timeout=5.0, protocol=2).make_connection()
        await connection.connect()
        await connection.send_command("GET", f"{PREFIX}:a")
        told = await connection.read_response()
        await connection.disconnect(nowait=True)
        return told

    assert asyncio.run(read()) == b"1"
    with pytest.raises(RedisError, match="CERTIFICATE_VERIFY_FAILED"):
        StoreClients(one_by_tls, PREFIX).client(5.0).ping()
