"""`lockstep session` pin, rm and gc: what stays, what goes, who is told."""

import os

import pytest

from ingest.command.session.fit import served
from tests.ingest.command.session.asked import asked, refused
from tests.ingest.kept_sessions import keep, paths_of, tier_at
from workers.settings import settings


def test_a_pin_is_set_and_taken_away(tier, capsys):
    keep(tier, "talk")
    assert asked(capsys, "pin", "talk") == (0, {"id": "talk", "pinned": True})
    assert asked(capsys, "show", "talk")[1]["pinned"] is True
    assert asked(capsys, "unpin", "talk") == (0, {"id": "talk", "pinned": False})
    assert asked(capsys, "show", "talk")[1]["pinned"] is False


def test_a_removed_session_takes_its_own_files_along(tier, capsys):
    made = keep(tier, "talk")
    code, told = asked(capsys, "rm", "talk")
    assert code == 0 and told["bytes"] > 0
    assert not any(path.exists() for path in paths_of(tier, made))
    assert refused(capsys, "show", "talk")[0] == 1


def test_what_a_fork_shares_stays(tier, capsys):
    made = keep(tier, "talk")
    tier.fork("default", "talk", "branch")
    assert asked(capsys, "rm", "talk")[0] == 0
    assert all(path.exists() for path in paths_of(tier, made))
    assert asked(capsys, "verify", "branch")[0] == 0


def test_a_session_in_use_is_not_removed_unless_forced(tier, capsys, store):
    keep(tier, "talk")
    store.redis.hset(store.keys.session("talk"), mapping={"holder": "r-7"})
    code, sentence = refused(capsys, "rm", "talk")
    assert code == 1 and "'r-7'" in sentence and "--force" in sentence
    assert tier.sessions.head("default", "talk") is not None
    assert asked(capsys, "rm", "talk", "--force")[0] == 0
    assert tier.sessions.head("default", "talk") is None


@pytest.fixture
def known(store):
    """The store knows that a turn of `talk` was committed."""
    store.redis.hset(store.keys.session("talk"), mapping={"fence": 3, "generation": 7})
    return lambda: store.session("talk").get("generation")


def test_what_is_removed_may_begin_anew(tier, capsys, known):
    keep(tier, "talk")
    assert asked(capsys, "rm", "talk")[0] == 0
    assert known() is None


def test_a_session_whose_files_somebody_deleted_can_be_removed(tier, capsys, known):
    assert asked(capsys, "rm", "talk") == (0, {"id": "talk", "removed": True, "bytes": 0})
    assert known() is None
    assert refused(capsys, "rm", "talk")[0] == 1


def test_a_damaged_session_can_be_removed(tier, capsys):
    keep(tier, "talk")
    for path in (tier.root / "sessions" / "default" / "talk").glob("*.manifest"):
        path.write_bytes(b"no manifest")
    assert asked(capsys, "rm", "talk")[0] == 0
    assert refused(capsys, "rm", "talk")[0] == 1


def test_what_gc_takes_for_its_age_may_begin_anew(tier, capsys, known, monkeypatch):
    monkeypatch.setenv("LOCKSTEP_SESSION_TTL_S", "60")
    settings.cache_clear()
    keep(tier, "talk")
    assert asked(capsys, "gc")[1]["sessions"] == 1
    assert known() is None


@pytest.mark.parametrize("how", ["fork", "import"])
def test_what_is_made_is_not_taken_for_what_was_there_before(tier, capsys, known, tmp_path, how):
    keep(tier, "other", node=served())
    file = str(tmp_path / "f")
    assert asked(capsys, "export", "other", file)[0] == 0
    words = ["fork", "other", "talk"] if how == "fork" else ["import", file, "--id", "talk"]
    assert asked(capsys, *words)[0] == 0
    assert known() == 1  # its own, not the one of what had that name


def test_a_session_of_another_tenant_is_held_by_its_own_requests(tier, capsys, store):
    keep(tier, "talk", tenant="acme")
    store.redis.hset(store.keys.session("acme--talk"), mapping={"holder": "r-7"})
    assert refused(capsys, "rm", "talk", "--tenant", "acme")[0] == 1


def test_without_a_store_nothing_runs_and_rm_goes_on(tier, capsys, monkeypatch, free_port):
    keep(tier, "talk")
    monkeypatch.setenv("LOCKSTEP_REDIS_URL", f"redis://127.0.0.1:{free_port()}/0")
    settings.cache_clear()
    assert asked(capsys, "rm", "talk")[0] == 0


def test_gc_says_what_would_go_and_takes_it(home, capsys):
    hour_ago = tier_at(home)
    hour_ago._now_ms = hour_ago.ledger._now_ms = lambda: 3_600_000
    made = keep(hour_ago, "talk")
    path = paths_of(hour_ago, made)[0]
    hour_ago.close()
    for manifest in (home / "kv" / "sessions").rglob("*.manifest"):
        manifest.unlink()
    (home / "kv" / "ledger.sqlite").unlink()
    os.utime(path, (3600, 3600))
    code, told = asked(capsys, "gc", "--dry-run")
    assert (code, told["objects"], told["dry_run"]) == (0, 1, True)
    assert told["bytes"] == path.stat().st_size
    assert asked(capsys, "gc")[1]["objects"] == 1
    assert not path.exists()
