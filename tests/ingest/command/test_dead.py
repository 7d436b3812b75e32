"""Dead letters are listed, shown and tried again, and nothing that has ended ends twice."""

import json
from datetime import datetime

import msgpack
import msgspec
import pytest

from ingest.command.dead import client_fields
from ingest.command.main import run
from router.entry import read_entry
from tests.workers.webhook.ended import end_a_request
from workers.settings import settings
from workers.webhook.deliver import Outcome
from workers.webhook.outbox import Outbox
from workers.wire import EndEvent, Keys, Request, SamplingParams, WebhookTarget
from workers.worker_store import WorkerStore

URL = "http://127.0.0.1:9/hook"
REQUEST = Request(
    id="r-1",
    model="tiny",
    token_ids=(1, 2, 3),
    arrival_ms=1,
    deadline_ms=9_999_999_999_999,
    params=SamplingParams(max_tokens=4, seed=7, stop=("x",)),
    webhook=WebhookTarget(url=URL, events=("failed",)),
    metadata={"order": 1},
)


@pytest.fixture
def store(redis_url, monkeypatch):
    monkeypatch.setenv("LOCKSTEP_REDIS_URL", redis_url)
    settings.cache_clear()
    yield WorkerStore(redis_url, Keys("lockstep"), max_attempts=1)
    settings.cache_clear()


def refuse(store, body, request_id="r-1", sla="batch", tenant="default"):
    """A request that the router refuses, with a dead letter."""
    stream = store.keys.requests(sla)
    store.redis.xgroup_create(stream, "router", mkstream=True)
    entry_id = store.redis.xadd(stream, {"m": b"x"}, id="1-1").decode()  # no letter has this id
    store.redis.xreadgroup("router", "test", {stream: ">"})
    end = EndEvent(status="failed", error="model: is not served", code="bad_request")
    names = {"sla": sla, "entry_id": entry_id, "request_id": request_id, "tenant": tenant}
    store.refuse(**names, end=end, body=body, dead=True)


def kill_a_webhook(store, request_id="r-1"):
    end_a_request(store, URL, request_id)
    (item,) = store.claim("webhooks", "w1", 1)
    assert Outbox(store).end(item, Outcome("dead", 410, "HTTP 410"), b'{"a":1}') == "dead"


def asked(capsys, *arguments):
    """Exit code and JSON of a command."""
    capsys.readouterr()
    code = run(["dead", *arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def entries(store, sla="batch"):
    return [read_entry(fields) for _, fields in store.redis.xrange(store.keys.requests(sla))]


def test_an_empty_list_says_so(store, capsys):
    assert run(["dead", "list"]) == 0
    assert capsys.readouterr().out == "no dead letters\n"
    assert asked(capsys, "list") == (0, {"dead": []})


def test_the_newest_letter_comes_first(store, capsys):
    refuse(store, b"x", "r-1")
    kill_a_webhook(store, "r-2")
    _, answer = asked(capsys, "list")
    kinds = [(letter["kind"], letter["id"], letter["reason"]) for letter in answer["dead"]]
    assert kinds == [
        ("webhook", "r-2", "HTTP 410"),
        ("request", "r-2", "why"),
        ("request", "r-1", "model: is not served"),
    ]
    assert all(letter["at_ms"] > 0 and "body" not in letter for letter in answer["dead"])
    assert len(asked(capsys, "list", "--kind", "webhook")[1]["dead"]) == 1
    assert len(asked(capsys, "list", "--count", "2")[1]["dead"]) == 2


def test_a_line_says_what_when_and_why(store, capsys):
    kill_a_webhook(store)
    assert run(["dead", "list", "--kind", "webhook"]) == 0
    line = capsys.readouterr().out
    assert all(
        word in line for word in ("webhook", "r-1", URL, "HTTP 410", f" {datetime.now():%Y}-")
    )


def test_long_lists_are_read_page_by_page(store, capsys):
    for n in range(250):
        store.redis.xadd(store.keys.dead, {"kind": "request", "id": f"r-{n}", "at_ms": 1})
    ids = [letter["id"] for letter in asked(capsys, "list", "--count", "1000")[1]["dead"]]
    assert ids == [f"r-{n}" for n in reversed(range(250))]


def test_a_letter_is_shown_with_what_it_carried(store, capsys):
    refuse(store, msgpack.packb({"prompt": "hi"}), "r-1")
    code, letter = asked(capsys, "show", "r-1")
    assert (code, letter["carried"]) == (0, {"prompt": "hi"})
    assert letter["letter"] == store.redis.xrange(store.keys.dead)[0][0].decode()
    assert asked(capsys, "show", letter["letter"]) == (0, letter)
    kill_a_webhook(store, "r-2")
    assert asked(capsys, "show", "r-2")[1]["carried"] == {"a": 1}
    assert asked(capsys, "show", "r-2", "--kind", "request")[1]["kind"] == "request"
    assert run(["dead", "show", "r-1"]) == 0
    assert "model: is not served" in capsys.readouterr().out


@pytest.mark.parametrize("body", [b"\xc1", b"", b"\xff" * 100])
def test_what_cannot_be_read_is_shown_without(store, capsys, body):
    refuse(store, body)
    assert asked(capsys, "show", "r-1")[1]["carried"] is None


def test_a_webhook_is_posted_again_under_its_old_id(store, capsys):
    kill_a_webhook(store)
    code, answer = asked(capsys, "replay", "r-1")
    assert (code, answer["replayed"][0]["as"]) == (0, "msg_r-1_failed")
    webhook = store.webhook("r-1")
    assert (webhook["state"], webhook["attempts"], webhook["failures"]) == ("pending", 1, 0)
    (item,) = store.claim("webhooks", "w1", 1)
    assert item.job_id == "wh-r-1-2"
    assert asked(capsys, "list", "--kind", "webhook")[1] == {"dead": []}


def test_a_webhook_outlives_all_other_traces_of_its_request(store, capsys):
    """The letter alone is enough: it has the address and the body."""
    kill_a_webhook(store)
    store.redis.delete(store.keys.webhook("r-1"), store.keys.job("r-1"))
    assert asked(capsys, "replay", "r-1")[0] == 0
    webhook = store.webhook("r-1")
    assert (webhook["url"], webhook["body"], webhook["status"]) == (URL, '{"a":1}', "failed")


def test_a_webhook_that_fails_again_leaves_a_new_letter(store, capsys):
    kill_a_webhook(store)
    asked(capsys, "replay", "r-1", "--kind", "webhook")
    (item,) = store.claim("webhooks", "w1", 1)
    Outbox(store).end(item, Outcome("dead", 404, "HTTP 404"), b"{}")
    (letter,) = asked(capsys, "list", "--kind", "webhook")[1]["dead"]
    assert (letter["reason"], letter["attempts"]) == ("HTTP 404", "2")


def test_a_webhook_that_is_on_its_way_is_not_doubled(store, capsys):
    kill_a_webhook(store)
    letter = store.redis.xrevrange(store.keys.dead, count=1)[0][1]
    asked(capsys, "replay", "r-1")
    store.redis.xadd(store.keys.dead, letter)
    code, answer = asked(capsys, "replay", "r-1", "--kind", "webhook")
    assert (code, answer["replayed"][0]["error"]) == (1, "webhook r-1: its webhook is pending")
    assert store.redis.llen(store.keys.webhook_queue) == 1


def test_a_request_enters_its_stream_under_a_new_id(store, capsys):
    refuse(store, msgpack.packb({"id": "r-1", "prompt": "hi", "max_tokens": 3}))
    code, answer = asked(capsys, "replay", "r-1")
    (row,) = answer["replayed"]
    assert (code, row["as"]) == (0, f"replay-{row['letter']}")
    assert entries(store) == [({"id": row["as"], "prompt": "hi", "max_tokens": 3}, False)]
    assert store.job("r-1")["status"] == "failed"
    assert asked(capsys, "list")[1] == {"dead": []}


def test_plain_fields_stay_plain(store, capsys):
    refuse(store, msgpack.packb({b"prompt": b"hi", b"max_tokens": b"3"}))
    row = asked(capsys, "replay", "r-1")[1]["replayed"][0]
    assert entries(store) == [({"id": row["as"], "prompt": "hi", "max_tokens": "3"}, True)]


def test_the_id_of_another_tenants_request_is_told_in_full(store, capsys):
    body = msgpack.packb({"id": "r-1", "tenant": "acme", "prompt": "hi"})
    refuse(store, body, "acme--r-1", tenant="acme")
    row = asked(capsys, "replay", "acme--r-1")[1]["replayed"][0]
    assert row["as"] == f"acme--replay-{row['letter']}"
    assert entries(store)[0][0]["id"] == f"replay-{row['letter']}"


def test_a_poisonous_request_is_sent_as_it_was_admitted(store, capsys):
    """Its message is gone; what the router made of it is kept."""
    stream = store.keys.requests("standard")
    store.redis.xgroup_create(stream, "router", mkstream=True)
    entry_id = store.redis.xadd(stream, {"m": b"x"}).decode()
    store.redis.xreadgroup("router", "test", {stream: ">"})
    store.route(sla="standard", entry_id=entry_id, request=REQUEST, pool="cpu", reason="test")
    (item,) = store.claim("cpu", "w1", 1)
    store.redis.zadd(store.keys.wip("cpu"), {f"r-1:{item.execution_id}": 0})
    store.reap("cpu")
    assert store.job("r-1")["status"] == "failed"
    row = asked(capsys, "replay", "r-1")[1]["replayed"][0]
    ((fields, plain),) = entries(store, "standard")
    assert not plain
    assert fields["id"] == row["as"]
    assert fields["token_ids"] == [1, 2, 3]
    assert (fields["max_tokens"], fields["seed"], fields["stop"]) == (4, 7, ["x"])
    assert fields["webhook"] == msgspec.to_builtins(REQUEST.webhook) | {"events": ["failed"]}
    assert fields["metadata"] == {"order": 1}
    assert "deadline_ms" not in fields and "arrival_ms" not in fields


@pytest.mark.parametrize("body", [b"\xc1", b"", msgpack.packb({"prompt": "x" * 99})[:50], b"\x01"])
def test_what_was_no_whole_request_is_not_sent(store, capsys, body):
    refuse(store, body)
    code, answer = asked(capsys, "replay", "r-1")
    assert code == 1
    assert "request r-1: " in answer["replayed"][0]["error"]
    assert entries(store) == []
    assert len(asked(capsys, "list")[1]["dead"]) == 1


def test_all_of_a_kind_are_tried_again_at_once(store, capsys):
    for n in range(3):
        kill_a_webhook(store, f"r-{n}")
    code, answer = asked(capsys, "replay", "--all", "--kind", "webhook")
    assert (code, len(answer["replayed"])) == (0, 3)
    assert store.redis.llen(store.keys.webhook_queue) == 3
    assert {letter["kind"] for letter in asked(capsys, "list")[1]["dead"]} == {"request"}


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        (["show", "nobody"], 1, "there is no dead letter 'nobody'"),
        (["show", "2-2"], 1, "there is no dead letter '2-2'"),
        (["replay", "nobody"], 1, "there is no dead letter 'nobody'"),
        (["replay"], 2, "name the letters, or give --all"),
        (["replay", "x", "--all"], 2, "name the letters, or give --all"),
        (["list", "--kind", "letter"], 2, "letter"),
        (["list", "--count", "0"], 2, "--count"),
    ],
)
def test_wrong_usage_is_one_sentence(store, capsys, arguments, code, word):
    assert run(["dead", *arguments]) == code
    assert word in capsys.readouterr().err


def test_the_status_of_a_request_tells_how_its_webhook_fares(store, capsys):
    kill_a_webhook(store)
    assert run(["status", "r-1", "--json"]) == 0
    webhook = json.loads(capsys.readouterr().out)["webhook"]
    assert (webhook["state"], webhook["attempts"], webhook["last_status"]) == ("dead", 1, 410)
    assert run(["status", "r-1"]) == 0
    assert "HTTP 410" in capsys.readouterr().out


MESSAGES = ({"role": "user", "content": "Hi"},)
TOLD = {"enable_thinking": False}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"token_ids": (), "messages": MESSAGES, "variables": TOLD},
            {"messages": MESSAGES, "chat_template_kwargs": TOLD},
        ),
        (
            {"messages": MESSAGES, "composed": True},
            {"token_ids": (1, 2, 3), "session_mode": "history"},
        ),
        ({"session_mode": "append"}, {"token_ids": (1, 2, 3), "session_mode": "append"}),
    ],
    ids=["messages", "composed", "token ids"],
)
def test_a_sessions_request_is_replayed_in_its_session(changes, expected):
    """What was composed already is the whole history."""
    request = msgspec.structs.replace(REQUEST, session_id="s", **changes)
    fields = client_fields(request, "again")
    names = {"messages", "token_ids", "session_mode", "chat_template_kwargs", "session_id"}
    assert {name: fields[name] for name in names & fields.keys()} == expected | {"session_id": "s"}
