"""A whole node with secrets: none of them is in a log, a page or a file that others can read."""

import json
import os
import secrets
import subprocess
import sys

import httpx
import pytest

from tests.node.conftest import make_node
from tests.node.running_node import wait_for
from tests.security.test_redis import (
    CERTIFICATE,
    TlsProxy,
    as_user,
    denied,
    documented_users,
    start_valkey,
)
from tests.workers.webhook.conftest import SECRET
from workers.wire import Keys

__all__ = ["make_node"]
pytestmark = pytest.mark.slow


@pytest.fixture
def loose_umask():
    before = os.umask(0)
    yield
    os.umask(before)


def command(node, *words):
    """A lockstep command of this node: all that it says."""
    done = subprocess.run(
        [sys.executable, "-m", "ingest.command.main", *words],
        cwd=node.home, env=node.environment, capture_output=True, text=True,
    )  # fmt: skip
    return done.stdout + done.stderr


def test_secrets_and_files_of_a_node_are_its_own(make_node, loose_umask):
    password, words = secrets.token_urlsafe(24), "the treasure lies under the oak"
    node = make_node(
        LOCKSTEP_STORE_PASSWORD=password, LOCKSTEP_WEBHOOK_SECRET=SECRET,
        LOCKSTEP_LOG_LEVEL="debug", LOCKSTEP_GPU="off", LOCKSTEP_KV_MIB="300",
    )  # fmt: skip
    node.store = type(node.store)(node.store.url.replace("//", f"//:{password}@"), Keys("nodetest"))
    key = json.loads(command(node, "key", "add", "shop", "--scope", "admin", "--json"))["secret"]
    headers = {"Authorization": f"Bearer {key}"}
    wait_for(lambda: httpx.get(f"{node.url}/v1/models").status_code == 401, "the key counts")
    body = {"prompt": words, "max_tokens": 3, "session_id": "talk"}
    body = {**body, "webhook": {"url": "https://user.example/hook?token=hidden77"}}
    told = httpx.post(f"{node.url}/v1/jobs", json=body, headers=headers, timeout=60)
    assert told.status_code == 202, told.text
    wait_for(lambda: node.store.job(told.json()["id"])["status"] == "finished", "finished")
    for bad in ({"prompt": 7}, {"prompt": "x", "sla": words}):
        httpx.post(f"{node.url}/v1/jobs", json=bad, headers=headers)
    httpx.get(f"{node.url}/v1/models", headers={"Authorization": "Bearer lsk-nobody-knows-this"})
    said = "".join(
        (
            node.log.read_text(),
            httpx.get(f"{node.url}/metrics", headers=headers, timeout=60).text,
            httpx.get(f"{node.url}/readyz").text,
            *(command(node, *words) for words in (["doctor"], ["status"], ["key", "list"])),
            *(process_line(process) for process in node.processes()),
        )
    )
    for secret in (password, key, SECRET, "nobody-knows-this", words, "hidden77"):
        assert secret not in said, secret
    readable = [
        f"{path.relative_to(node.home)} {path.stat().st_mode & 0o777:o}"
        for path in node.home.rglob("*")
        if not path.is_symlink() and path != node.log and path.stat().st_mode & 0o077
        and "models" not in path.parts
    ]  # fmt: skip
    assert readable == []


def process_line(process):
    return " ".join(process.cmdline())


def test_a_node_lives_with_the_documented_user_behind_tls(make_node, tmp_path, free_port):
    port = free_port()
    (tmp_path / "users.acl").write_text(documented_users().replace("lockstep:", "nodetest:"))
    server = start_valkey(
        tmp_path, port, "--aclfile", str(tmp_path / "users.acl"), "--appendonly", "yes"
    )
    proxy = TlsProxy(port)
    try:
        node = make_node(
            LOCKSTEP_REDIS_URL=as_user("node", proxy.port, "rediss"),
            LOCKSTEP_REDIS_CA=str(CERTIFICATE), LOCKSTEP_GPU="off", LOCKSTEP_KV_MIB="300",
        )  # fmt: skip
        told = httpx.post(
            f"{node.url}/v1/completions", json={"prompt": "Hello", "max_tokens": 3}, timeout=60
        )
        assert told.status_code == 200
        assert httpx.get(f"{node.url}/metrics", timeout=60).status_code == 200
        assert denied(port) == []
    finally:
        server.kill()
        server.wait()
        proxy.stop()
