"""A client that produces waits while a class is full, as long as it has patience."""

import json
import threading

import pytest

from ingest.client import Client, Overloaded
from ingest.command.main import run
from workers.promises import press
from workers.settings import settings
from workers.wire import Pressure

FULL = Pressure(waiting=9, most=5, wait_ms=30_000.0, retry_ms=12_345.0)
FREE = Pressure(waiting=1, most=5)


@pytest.fixture
def client(redis_url):
    return Client(redis_url, "lockstep")


def num_waiting(client):
    return client.store.redis.xlen(client.store.keys.requests("batch"))


def test_it_is_told_how_full_a_class_is(client):
    assert client.pressure("batch") is None
    press(client.store, {"batch": FULL})
    assert client.pressure("batch") == FULL


def test_without_patience_it_is_told_when_to_ask_again(client):
    press(client.store, {"batch": FULL})
    with pytest.raises(Overloaded, match="batch: 9 requests wait already") as raised:
        client.enqueue(prompt="a", sla="batch", patience_s=0.0)
    assert raised.value.retry_after_s == 12.345
    assert num_waiting(client) == 0


def test_with_patience_it_waits_until_there_is_room(client):
    press(client.store, {"batch": FULL})
    sent = []
    thread = threading.Thread(
        target=lambda: sent.append(client.enqueue(prompt="a", sla="batch", patience_s=60.0))
    )
    thread.start()
    press(client.store, {"batch": FREE})
    thread.join(10)
    assert sent and num_waiting(client) == 1


@pytest.mark.parametrize("told", [None, FREE])
def test_a_class_with_room_and_one_that_nobody_speaks_of_take_at_once(client, told):
    if told is not None:
        press(client.store, {"batch": told})
    client.enqueue(prompt="a", sla="batch", patience_s=0.0)
    assert num_waiting(client) == 1


def test_the_command_is_not_yet_when_the_class_stays_full(client, monkeypatch, capfd):
    monkeypatch.setenv("LOCKSTEP_REDIS_URL", client.store.url)
    settings.cache_clear()
    press(client.store, {"batch": FULL})
    code = run(["enqueue", "hello", "--sla", "batch", "--patience", "0"])
    assert (code, "ask again in 12 s" in capfd.readouterr().err) == (4, True)
    assert run(["enqueue", "hello", "--sla", "batch", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["sla"] == "batch"
    settings.cache_clear()
