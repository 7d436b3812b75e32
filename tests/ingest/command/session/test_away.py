"""`lockstep session` push and pull: to an object store, and from it."""

import pytest

from ingest.command.session.fit import served
from tests.ingest.command.session.asked import asked, refused
from tests.ingest.kept_sessions import keep
from workers.settings import settings


@pytest.fixture
def shared(home, tmp_path, monkeypatch):
    """An object store, of which the node knows."""
    monkeypatch.setenv("LOCKSTEP_KV_STORE_URL", f"file://{tmp_path}/shared")
    settings.cache_clear()
    return tmp_path / "shared"


def test_a_session_is_sent_once_and_fetched_again(tier, capsys, shared):
    keep(tier, "talk", node=served())
    code, told = asked(capsys, "push", "talk")
    assert (code, told["sessions"], told["left"], told["failed"]) == (0, 1, 0, {})
    assert told["sent"] > 1 and told["bytes"] > 16384
    assert asked(capsys, "push", "--all")[1]["sent"] == 0
    tier.sessions.drop("default", "talk")
    tier.collect()
    code, here = asked(capsys, "pull", "talk")
    assert (code, here["left"]) == (0, 0) and here["tokens"] == here["kv_tokens"] + 1
    assert asked(capsys, "verify", "talk")[1]["damaged"] == []
    assert asked(capsys, "pull", "talk")[1]["objects"] == 0  # it is here


def test_what_cannot_be_sent_or_fetched_is_said(tier, capsys, shared, monkeypatch):
    keep(tier, "talk", node=served())
    code, told = asked(capsys, "push", "nobody")
    assert code == 1 and "there is no session 'nobody'" in told["failed"]["nobody"]
    assert "nobody has session 'nobody'" in refused(capsys, "pull", "nobody")[1]
    assert refused(capsys, "push")[0] == refused(capsys, "push", "talk", "--all")[0] == 2
    monkeypatch.setenv("LOCKSTEP_KV_STORE_URL", "")
    settings.cache_clear()
    assert "LOCKSTEP_KV_STORE_URL is not set" in refused(capsys, "push", "talk")[1]


def test_a_session_in_use_is_not_pulled(tier, capsys, shared, store):
    store.redis.hset(store.keys.session("talk"), mapping={"holder": "r-7"})
    assert "in use" in refused(capsys, "pull", "talk")[1]


def test_what_is_removed_goes_from_the_object_store_too(tier, capsys, shared):
    keep(tier, "talk", node=served())
    assert asked(capsys, "push", "talk")[0] == 0
    assert list(shared.glob("sessions/*/*/*.manifest"))
    assert asked(capsys, "rm", "talk")[0] == 0
    assert not list(shared.glob("sessions/*/*/*.manifest"))


def test_a_pull_wants_to_ask_redis_what_was_committed_last(
    tier, capsys, shared, monkeypatch, free_port
):
    keep(tier, "talk", node=served())
    assert asked(capsys, "push", "talk")[0] == 0
    tier.sessions.drop("default", "talk")
    monkeypatch.setenv("LOCKSTEP_REDIS_URL", f"redis://127.0.0.1:{free_port()}")
    settings.cache_clear()
    code, sentence = refused(capsys, "pull", "talk")
    assert code == 3 and "Traceback" not in sentence
    assert tier.sessions.head("default", "talk") is None
