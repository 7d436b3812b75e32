"""The command line against a real store: what it prints, and exit codes for scripts."""

import json
import subprocess
import sys

import pytest
from redis import Redis

from ingest.command.main import COMMANDS, run
from tests.ingest.conftest import ROOT
from tests.ingest.stub_node import Play, StubNode
from workers.settings import settings
from workers.wire import EndEvent

TEXT = " Paris, of course."
FAILURE = EndEvent(status="failed", error="logits are not finite", code="numeric_error")


@pytest.fixture
def node(store, text):
    with StubNode(store, text) as node:
        yield node


@pytest.fixture
def lockstep(environment, capfd):
    """Runs a command line; gives exit code, stdout, stderr."""

    def call(*arguments):
        code = run(arguments)
        out, err = capfd.readouterr()
        return code, out, err

    return call


def test_help_lists_every_command(lockstep):
    code, out, _ = lockstep("--help")
    assert code == 0
    assert all(f"  {name} " in out for name in COMMANDS)
    assert lockstep()[0] == 2


def test_help_imports_no_library():
    """It must be quick: typer, redis and numpy come with the command that is called."""
    program = "import sys; from ingest.command.main import run; run(['--help'])\n"
    program += "assert not {'typer', 'redis', 'numpy', 'pydantic'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True)


@pytest.mark.parametrize("name", ["enqueue", "result", "stream", "cancel", "status"])
def test_each_command_has_help(lockstep, name):
    code, out, _ = lockstep(name, "--help")
    assert code == 0
    assert f"lockstep {name}" in out
    assert "--json" in out


def test_a_command_that_does_not_exist_is_2_and_a_hint(lockstep):
    assert lockstep("statu") == (
        2,
        "",
        "lockstep: there is no command 'statu'; did you mean 'status'?\n",
    )


def test_enqueue_then_result(lockstep, node):
    code, out, _ = lockstep("enqueue", "Hello", "--sla", "batch", "--id", "mine")
    assert (code, out) == (0, "mine\n")
    assert lockstep("result", "mine", "--wait", "10") == (0, TEXT + "\n", "")
    code, out, _ = lockstep("result", "mine", "--json")
    end = json.loads(out)
    assert (end["id"], end["text"], end["usage"]["output_tokens"]) == ("mine", TEXT, 4)


def test_enqueue_waits_and_prints_the_text(lockstep, node):
    assert lockstep("enqueue", "Hello", "--wait") == (0, TEXT + "\n", "")


def test_enqueue_passes_every_option_on(lockstep, node, wait_until):
    options = ["--max-tokens", "3", "--temperature", "0.5", "--top-k", "4", "--seed", "9"]
    options += [
        "--stop",
        "x",
        "--stop",
        "y",
        "--field",
        "min_p=0.25",
        "--field",
        'metadata={"a":1}',
    ]
    lockstep("enqueue", "Hello", "--chat", *options)
    wait_until(lambda: node.requests)
    params = node.requests[0].params
    assert (params.max_tokens, params.temperature, params.top_k, params.seed) == (3, 0.5, 4, 9)
    assert (params.stop, params.min_p, node.requests[0].metadata) == (("x", "y"), 0.25, {"a": 1})


@pytest.mark.parametrize(
    ("options", "field"),
    [
        (["--deadline-ms", "0"], "deadline_ms"),
        (["--deadline-ms", "-5"], "deadline_ms"),
        (["--max-tokens", "0"], "max_tokens"),
        (["--temperature", "3"], "temperature"),
        (["--field", "session_id=7"], "session_id"),
    ],
)
def test_enqueue_refuses_what_no_node_would_take_and_names_the_field(
    lockstep, redis_url, options, field
):
    """They were put on the stream, exit code 0, and failed there."""
    code, out, err = lockstep("enqueue", "Hello", *options)
    assert (code, out) == (2, "")
    assert err.startswith(f"lockstep: {field}: must be") and err.count("\n") == 1
    assert not Redis.from_url(redis_url).keys("*requests*")


def test_enqueue_reads_prompt_and_messages_from_elsewhere(lockstep, node, tmp_path, wait_until):
    messages = [{"role": "user", "content": "Hello"}]
    (tmp_path / "messages.json").write_text(json.dumps(messages))
    lockstep("enqueue", "--messages", f"@{tmp_path}/messages.json")
    lockstep("enqueue", "--messages", json.dumps(messages))
    lockstep("enqueue", "Hello", "--chat")
    wait_until(lambda: len(node.requests) == 3)
    assert len({request.token_ids for request in node.requests}) == 1


def test_stream_prints_text_or_events(lockstep, node):
    lockstep("enqueue", "Hello", "--id", "s")
    assert lockstep("stream", "s") == (0, TEXT + "\n", "")
    code, out, _ = lockstep("stream", "s", "--json", "--after", "0-3")
    assert code == 0
    assert [json.loads(line)["type"] for line in out.splitlines()] == ["token", "end"]


def test_a_request_that_failed_is_1_and_its_reason(lockstep, node):
    node.play = Play(pieces=("a",), end=FAILURE)
    lockstep("enqueue", "Hello", "--id", "f")
    expected = (1, "", "lockstep: f failed: logits are not finite\n")
    assert lockstep("result", "f", "--wait", "10") == expected
    code, out, _ = lockstep("result", "f", "--json")
    assert (code, json.loads(out)["code"]) == (1, "numeric_error")
    assert lockstep("stream", "f")[0] == 1


def test_a_request_that_runs_is_4(lockstep, node, wait_until):
    node.play = Play(pause_after=1)
    lockstep("enqueue", "Hello", "--id", "r")
    wait_until(lambda: node.store.tokens("r"))
    expected = (4, "", "lockstep: r has not ended: it is running\n")
    assert lockstep("result", "r") == expected


def test_cancel_says_what_became_of_it(lockstep, node, wait_until):
    node.play = Play(pause_after=1)
    lockstep("enqueue", "Hello", "--id", "c")
    wait_until(lambda: node.store.tokens("c"))
    assert lockstep("cancel", "c") == (0, "cancelling\n", "")
    wait_until(lambda: node.store.job("c")["status"] == "cancelled")
    assert lockstep("cancel", "c", "--json") == (0, '{"id": "c", "result": "ended"}\n', "")


@pytest.mark.parametrize("command", ["result", "cancel", "status", "stream"])
def test_an_unknown_request_is_1(lockstep, command):
    expected = (1, "", "lockstep: nothing is known of a request 'nobody'\n")
    assert lockstep(command, "nobody") == expected


def test_status_of_a_request(lockstep, node, wait_until):
    lockstep("enqueue", "Hello", "--id", "s", "--wait")
    code, out, _ = lockstep("status", "s", "--json")
    assert (code, json.loads(out)["status"]) == (0, "finished")
    assert "finished" in lockstep("status", "s")[1]


def test_status_of_the_node(lockstep, node):
    node.report(running=3, capacity=16)
    code, out, _ = lockstep("status", "--json")
    told = json.loads(out)
    assert (code, told["num_routers"], told["loads"][0]["running"]) == (0, 1, 3)
    assert "3/16" in lockstep("status")[1]


@pytest.mark.parametrize(
    "arguments",
    [
        ["enqueue"],
        ["enqueue", "Hello", "--messages", "[]"],
        ["enqueue", "--messages", "{"],
        ["enqueue", "--messages", "@/nowhere"],
        ["enqueue", "Hello", "--sla", "urgent"],
        ["enqueue", "Hello", "--max-tokens", "many"],
        ["enqueue", "Hello", "--patience", "-1"],
        ["enqueue", "Hello", "--field", "min_p"],
        ["enqueue", "Hello", "--field", "x=" + "9" * 40],
        ["enqueue", "\udcff"],
        ["result"],
        ["result", "x", "--wait", "long"],
        ["status", "--nonsense"],
    ],
)
def test_wrong_usage_is_2_and_no_traceback(lockstep, arguments):
    code, out, err = lockstep(*arguments)
    assert (code, out) == (2, "")
    assert err.strip()
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "arguments", [["enqueue", "x"], ["result", "x"], ["stream", "x"], ["cancel", "x"], ["status"]]
)
def test_a_store_that_does_not_answer_is_3(lockstep, environment, free_port, arguments):
    port = free_port()
    environment.setenv("LOCKSTEP_REDIS_URL", f"redis://:secret@127.0.0.1:{port}/0")
    settings.cache_clear()
    code, out, err = lockstep(*arguments)
    assert (code, out) == (3, "")
    assert err.startswith(f"lockstep: the store at redis://127.0.0.1:{port}/0 does not answer")
    assert "secret" not in err and "Traceback" not in err


def test_a_wrong_setting_is_2_and_named(lockstep, environment):
    environment.setenv("LOCKSTEP_PORT", "http")
    settings.cache_clear()
    code, _, err = lockstep("status")
    assert code == 2
    assert err.startswith("lockstep: configuration: port: ")


def test_a_setting_that_is_none_is_2_and_said_in_words(lockstep, environment, tmp_path):
    environment.chdir(tmp_path)
    (tmp_path / "lockstep.toml").write_text("[slas.realtime]\nttft_ms = 1\n")
    settings.cache_clear()
    code, _, err = lockstep("status")
    assert code == 2
    assert err.startswith("lockstep: configuration: slas: there is no such setting; ")


def test_a_url_that_is_no_redis_is_2_and_named(lockstep, environment):
    environment.setenv("LOCKSTEP_REDIS_URL", "http://127.0.0.1:6379")
    settings.cache_clear()
    code, _, err = lockstep("status")
    assert code == 2
    assert err.startswith("lockstep: configuration: redis_url: ")


def test_a_store_that_refuses_is_3_and_no_traceback(lockstep, store):
    store.redis.config_set("maxmemory", 1)
    try:
        code, _, err = lockstep("enqueue", "Hello")
    finally:
        store.redis.config_set("maxmemory", 0)
    assert code == 3
    assert err.startswith("lockstep: the store at redis://") and "maxmemory" in err


def test_a_reader_that_has_enough_is_no_traceback(environment, node):
    """As in `lockstep stream ID | head -1`."""
    lockstep = [sys.executable, "-m", "ingest.command.main"]
    subprocess.run([*lockstep, "enqueue", "Hello", "--id", "p", "--wait"], cwd=ROOT, check=True)
    command = f"{' '.join(lockstep)} stream p --json | true"
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True)
    assert "Traceback" not in done.stderr
