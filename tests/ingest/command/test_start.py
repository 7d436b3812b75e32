"""What keeps a node from starting is one sentence; the rest of `make start` is in tests/node."""

import json
import os
import socket
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from ingest.command import start
from ingest.health import ready

ROOT = Path(__file__).parents[3]


@pytest.fixture
def prepare(tmp_path, free_port):
    """Runs the first half of make start in a home of its own; gives (exit code, stdout, stderr)."""
    ports = {"LOCKSTEP_PORT": str(free_port()), "LOCKSTEP_STORE_PORT": str(free_port())}
    kept = {k: v for k, v in os.environ.items() if not k.startswith("LOCKSTEP_")}
    environment = kept | ports | {"LOCKSTEP_HOME": str(tmp_path / "home")}

    def run(folder: Path = ROOT, **more: str) -> tuple[int, str, str]:
        done = subprocess.run(
            [sys.executable, "-m", "ingest.command.start", "prepare"], cwd=folder,
            env=environment | {"PYTHONPATH": str(ROOT)} | more,
            capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        return done.returncode, done.stdout, done.stderr

    return run


def test_a_prepared_home_has_the_model_and_a_secret(prepare, model_home):
    code, said, _ = prepare(LOCKSTEP_HOME=str(model_home), LOCKSTEP_PORT="18123")
    assert code == 0
    assert json.loads(said) == {"host": "127.0.0.1", "port": 18123, "model": "smollm2-135m"}
    assert (model_home / "webhook_secret").read_text().startswith("whsec_")


@pytest.mark.parametrize(
    "more, words",
    [
        ({"LOCKSTEP_PORT": "eight"}, ("LOCKSTEP_PORT", "'eight'")),
        ({"LOCKSTEP_GPU": "maybe"}, ("LOCKSTEP_GPU", "'maybe'")),
        ({"LOCKSTEP_HOST": "192.0.2.1"}, ("192.0.2.1", "LOCKSTEP_HOST")),
        ({"LOCKSTEP_MODEL": "nobody"}, ("nobody", "lockstep model add")),
        (
            {"LOCKSTEP_REDIS_URL": "redis://127.0.0.1:1/0"},
            ("LOCKSTEP_REDIS_URL", "does not answer"),
        ),
        ({"LOCKSTEP_REDIS_URL": "nonsense"}, ("LOCKSTEP_REDIS_URL",)),
    ],
)
def test_a_wrong_setting_is_one_sentence_that_names_it(prepare, more, words):
    code, _, said = prepare(**more)
    assert code == 1
    assert len(said.splitlines()) == 1, said
    assert all(word in said for word in words), said


@pytest.mark.parametrize(
    "text, word",
    [
        *((b"port = 80x", "line 1"), (b"prot = 8001", "'prot'")),
        *((b'gpu = "maybe"', "LOCKSTEP_GPU"), (b"\xff", "cannot be read")),
    ],
)
def test_a_wrong_lockstep_toml_is_one_sentence(prepare, tmp_path, text, word):
    (tmp_path / "lockstep.toml").write_bytes(text)
    code, _, said = prepare(tmp_path)
    assert code == 1
    assert len(said.splitlines()) == 1, said
    assert word in said, said


@pytest.mark.parametrize("setting", ["LOCKSTEP_PORT", "LOCKSTEP_STORE_PORT"])
def test_a_port_in_use_is_one_sentence_that_names_the_setting(prepare, setting):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        code, _, said = prepare(**{setting: port})
    assert code == 1
    assert said.startswith(f"Port {port} is in use") and setting in said
    assert len(said.splitlines()) == 1


def test_a_node_that_already_runs_is_said_alone(prepare, tmp_path):
    home = tmp_path / "home"
    kept = {**os.environ, "LOCKSTEP_HOME": str(home)}
    keeper = subprocess.Popen(
        [sys.executable, "-m", "workers.keeper", "a", "sh", "-c", "echo up; exec sleep 60"],
        cwd=ROOT, env=kept, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        keeper.stdout.readline()
        while not (home / "run" / "a.json").exists():
            pass
        code, _, said = prepare()
    finally:
        keeper.terminate()
        keeper.communicate()
    assert code == 1
    assert "already runs" in said and len(said.splitlines()) == 1


def test_the_ready_line_comes_with_a_command_to_try():
    node = {"host": "127.0.0.1", "port": 8000, "model": "it's"}
    ready, curl = start.ready_lines(**node, took_s=2.25).strip().splitlines()
    assert ready.startswith("Lockstep is ready on http://127.0.0.1:8000 after 2.2 s")
    split = subprocess.run(
        ["sh", "-c", f"printf '%s\\n' {curl.removeprefix('curl ')}"], capture_output=True, text=True
    ).stdout.splitlines()
    assert split[0] == "http://127.0.0.1:8000/v1/chat/completions"
    assert json.loads(split[-1])["model"] == "it's"


@pytest.mark.parametrize(("status", "expected"), [(401, True), (200, False), (503, False)])
def test_the_command_to_try_has_a_key_where_the_door_wants_one(status, expected):
    class Door(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Door) as server:
        thread = Thread(target=server.handle_request)
        thread.start()
        with_key = ready.needs_key("127.0.0.1", server.server_port)
        thread.join()
    node = {"host": "127.0.0.1", "port": 8000, "model": "m", "took_s": 1.0}
    assert with_key == expected
    told = ready.ready_lines(**node, with_key=with_key)
    assert ('-H "Authorization: Bearer $LOCKSTEP_API_KEY"' in told) == expected


def test_a_door_that_is_not_there_wants_no_key(free_port):
    assert not ready.needs_key("127.0.0.1", free_port())
