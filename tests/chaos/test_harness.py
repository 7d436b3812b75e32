"""The harness itself: its faults do what they say, and its checks find what they are for."""

import re
import socket
import threading
from contextlib import suppress
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
from standardwebhooks.webhooks import Webhook

from tests.chaos import checks, remains
from tests.chaos.faults.menu import APART, MENU, drawn
from tests.chaos.faults.points import HAND_OVERS
from tests.chaos.link import Link
from tests.chaos.log_cut import cut
from tests.chaos.moody_receiver import SECRET, Delivery, is_signed
from tests.chaos.table import README, read_results, with_results
from tests.chaos.workload import Asked, Record, events
from workers.script import LUA
from workers.store import Store
from workers.wire import EndEvent, Keys, TokenEvent

TESTS = README.parents[1]
BODY = b'{"data":{"id":"r1"}}'


@pytest.fixture
def echo():
    """A link to a server that says everything again; heard: what arrived there."""
    server, heard = socket.create_server(("127.0.0.1", 0)), []

    def serve():
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection, suppress(OSError):
                while piece := connection.recv(100):
                    heard.append(piece)
                    connection.sendall(piece)

    threading.Thread(target=serve, daemon=True).start()
    link = Link(server.getsockname()[1])
    yield link, heard
    link.close()
    server.shutdown(socket.SHUT_RDWR)
    server.close()


def said(link, words):
    """What comes back; None: the connection was reset."""
    try:
        with socket.create_connection(("127.0.0.1", link.port), timeout=5) as client:
            client.sendall(words)
            return client.recv(100) or None
    except ConnectionError:
        return None


def test_a_link_passes_everything_on(echo):
    link, heard = echo
    assert said(link, b"hello") == b"hello" and heard == [b"hello"]


def test_a_lost_reply_was_asked_for(echo):
    link, heard = echo
    link.lose_replies = 1
    assert said(link, b"hello") is None and heard == [b"hello"]
    assert said(link, b"again") == b"again"


def test_of_a_torn_request_half_arrives(echo):
    link, heard = echo
    link.tear = 1
    assert said(link, b"hello!") != b"hello!"
    assert said(link, b"again") == b"again" and heard == [b"hel", b"again"]


def test_who_refuses_is_not_there(echo):
    link, _ = echo
    link.refuses = True
    assert said(link, b"hello") is None


# --- a log that is cut ---


def log_of(*commands):
    words = [b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in command) for command in commands]
    return [b"*%d\r\n" % len(c) + text for c, text in zip(commands, words, strict=True)]


@pytest.fixture
def store_folder(tmp_path):
    """With a log of three requests, the third one in a transaction."""
    folder = tmp_path / "appendonlydir"
    folder.mkdir()
    (folder / "appendonly.aof.manifest").write_text("file log.aof seq 1 type i\n")
    pieces = log_of(
        (b"XADD", b"s", b"*", b"id", b"r1"),
        (b"XADD", b"s", b"*", b"id", b"r2"),
        (b"MULTI",),
        (b"XADD", b"s", b"*", b"id", b"r3"),
        (b"EXEC",),
    )
    (folder / "log.aof").write_bytes(b"#TS:1\r\n" + b"".join(pieces))
    return tmp_path, [len(piece) for piece in pieces]


@pytest.mark.parametrize(
    "pieces, torn, expected",
    [
        (0, 1, {"r3"}),  # EXEC is torn: the transaction is gone
        (2, 0, {"r3"}),
        (3, 0, {"r3"}),
        (3, 1, {"r2", "r3"}),
        (4, 0, {"r2", "r3"}),
        (4, 1, {"r1", "r2", "r3"}),
    ],
)
def test_a_cut_names_whose_acceptance_is_gone(store_folder, pieces, torn, expected):
    folder, sizes = store_folder
    num_bytes = sum(sizes[len(sizes) - pieces :]) + torn
    assert cut(folder, num_bytes, ["r1", "r2", "r3"]) == expected


# --- what clients and receivers see ---


def test_an_event_that_was_cut_is_none():
    lines = ["id: 0-1", 'data: {"text": "a"}', "", "id: 0-2", 'data: {"text": "b"}']
    assert list(events(iter(lines))) == [("0-1", "a")]


@pytest.mark.parametrize("hours", [0, 5])
def test_a_signature_is_right_whatever_its_clock_says(hours):
    at = datetime.fromtimestamp(1_800_000_000 + hours * 3600, UTC)
    headers = {
        "webhook-id": "msg_1",
        "webhook-timestamp": str(int(at.timestamp())),
        "webhook-signature": Webhook(SECRET).sign("msg_1", at, BODY.decode()),
    }
    assert is_signed(BODY, headers)
    assert not is_signed(BODY + b" ", headers)
    assert not is_signed(BODY, headers | {"webhook-id": "msg_2"})


# --- the checks ---

TOKENS = [TokenEvent(index=i, token_id=7 + i, text="a", digest=f"{i}") for i in range(3)]
END = EndEvent(status="finished", finish_reason="length", digest="2")
RIGHT = [*TOKENS, END]
ENTRIES = [(str(i), event) for i, event in enumerate(RIGHT)]
JOB = {"status": "finished", "text": "aaa", "output_tokens": 3}


def test_what_is_right_is_no_difference():
    assert checks.difference(RIGHT, RIGHT) is None
    assert not list(checks.holes(JOB, ENTRIES))


@pytest.mark.parametrize(
    "got",
    [
        [TOKENS[0], TokenEvent(index=1, token_id=9, text="a", digest="1"), TOKENS[2], END],
        [*TOKENS[:2], END],
        [*TOKENS, TokenEvent(index=3, token_id=9, text="", digest="3"), END],
        [*TOKENS, EndEvent(status="finished", finish_reason="stop", digest="2")],
    ],
)
def test_other_tokens_are_found(got):
    assert checks.difference(got, RIGHT)


def test_holes_of_a_journal_are_found():
    assert list(checks.holes(JOB, [ENTRIES[0], *ENTRIES[2:]]))
    assert list(checks.holes(JOB | {"text": "ab"}, ENTRIES))
    assert list(checks.holes(JOB | {"output_tokens": 4}, ENTRIES))


def storm_of(redis_url, **asked):
    """As much of a storm as the checks look at; asked: more of request r1."""
    fields = {"sla": "standard", "session": None, "hook": True, "deadline": False, "body": {}}
    record = Record(asked={"r1": Asked(id="r1", **(fields | asked))})
    receiver = SimpleNamespace(forged=0, trapped=0, deliveries=[])
    node = SimpleNamespace(store=Store(redis_url, Keys("lockstep")))
    seen = SimpleNamespace(changed=[])
    return SimpleNamespace(
        record=record, receiver=receiver, node=node, seen=seen, cut_ids=set(), is_cut=False,
        outcome=SimpleNamespace(faults=[]),
    )  # fmt: skip


def test_a_request_without_an_end_is_lost_unless_the_log_was_cut(redis_url):
    storm = storm_of(redis_url)
    assert list(checks.lost(storm, {}))
    storm.cut_ids = {"r1"}
    assert not list(checks.lost(storm, {}))
    storm.node.store.redis.hset("lockstep:job:r1", "status", "running")
    assert list(checks.lost(storm, {})), "it was not cut off, it hangs"


@pytest.mark.parametrize("status, code", [("cancelled", ""), ("expired", ""), ("failed", "poison")])
def test_an_end_that_nobody_asked_for_is_found(redis_url, status, code):
    storm = storm_of(redis_url)
    assert list(checks.causeless(storm, {"r1": {"status": status, "code": code}}))


def test_two_ends_are_found(redis_url):
    storm = storm_of(redis_url)
    storm.node.store.redis.hset("lockstep:job:r1", "status", "finished")
    storm.node.store.redis.hset("lockstep:ends", "standard finished", 1)
    assert not list(checks.doubled(storm, {"r1": JOB}, {"r1": ENTRIES}))
    assert list(checks.doubled(storm, {"r1": JOB}, {"r1": [*ENTRIES, ("4", END)]}))
    assert list(checks.doubled(storm, {"r1": JOB | {"status": "failed"}}, {"r1": ENTRIES}))
    storm.node.store.redis.hincrby("lockstep:ends", "standard finished", 1)
    assert list(checks.doubled(storm, {"r1": JOB}, {"r1": ENTRIES}))


def delivery(webhook_id="msg", text="aaa", taken=True):
    data = {"id": "r1", "status": "finished", "text": text}
    return Delivery(webhook_id, text.encode(), data, taken)


@pytest.mark.parametrize(
    "came, is_right",
    [
        ([delivery()], True),
        ([delivery(taken=False), delivery(), delivery()], True),
        ([], False),
        ([delivery(taken=False)], False),
        ([delivery(), delivery("other")], False),
        ([delivery(), delivery(text="aab")], False),
        ([delivery(text="aab")], False),
    ],
)
def test_webhooks_come_once_at_least_and_say_one_thing(redis_url, came, is_right):
    storm = storm_of(redis_url)
    storm.receiver.deliveries = came
    assert bool(list(checks.webhooks(storm, {"r1": JOB}))) != is_right


@pytest.mark.parametrize(
    "plant",
    [
        ("XADD", "lockstep:requests:batch", "*", "a", "b"),
        ("LPUSH", "lockstep:rq:queue:cpu", "r1"),
        ("ZADD", "lockstep:rq:wip:gpu", 1, "r1:e1"),
        ("ZADD", "lockstep:active", 1, "r1"),
        ("ZADD", "lockstep:webhooks:due", 1, "r1"),
        ("HSET", "lockstep:session:s", "holder", "r1"),
        ("SADD", "lockstep:rq:worker:w:executions", "r1:e1"),
        ("SET", "lockstep:something", 1),
    ],
)
def test_what_is_left_over_is_found(redis_url, plant):
    storm = storm_of(redis_url)
    redis, keys = storm.node.store.redis, storm.node.store.keys
    for sla in keys.classes:
        redis.xgroup_create(keys.requests(sla), "router", id="0", mkstream=True)
        redis.expire(keys.requests(sla), 1000)
    clean = [what for what in remains.left(storm) if "pools are" not in what]
    redis.execute_command(*plant)
    assert not clean and [what for what in remains.left(storm) if "pools are" not in what]


# --- the menu ---


def test_kill_points_are_scripts():
    assert set(HAND_OVERS) <= {path.stem for path in LUA.glob("*.lua")}


def test_a_seed_draws_the_same_faults_again_and_none_that_hide_each_other():
    for seed in range(300):
        names = [fault.name for fault in drawn(seed, 5)]
        assert names == [fault.name for fault in drawn(seed, 5)]
        assert not all(set(names) & side for side in APART)


def test_each_fault_is_drawn_by_some_seed():
    assert {fault.name for seed in range(2000) for fault in drawn(seed, 5)} == set(MENU)


# --- what is written down ---


def test_the_matrix_says_what_the_results_say():
    readme = README.read_text()
    assert with_results(readme, read_results()) == readme


def test_each_fault_has_a_row_and_each_row_a_fault_or_a_test():
    cells = [line.split("|")[4] for line in README.read_text().split("\n") if line.count("|") == 6]
    named = {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}
    assert set(MENU) <= named
    for file in (name for name in named if name.endswith(".py")):
        assert (README.parents[1] / file).exists(), file
    for test in (name for name in named if name.startswith("test_")):
        assert any(f"def {test}(" in path.read_text() for path in TESTS.rglob("*.py")), test
