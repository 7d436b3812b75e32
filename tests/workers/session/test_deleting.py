"""A session that is deleted, by hand or by command, in mid-turn too: nothing of it comes back."""

import shutil

import pytest

from ingest.command.main import run
from tests.workers.session.conftest import LONG
from workers.settings import settings


@pytest.fixture
def model():
    return "tiny_llama"


@pytest.fixture
def rm(pools, monkeypatch):
    """`lockstep session rm s`; its exit code."""
    monkeypatch.setenv("LOCKSTEP_HOME", str(pools.home))
    monkeypatch.setenv("LOCKSTEP_REDIS_URL", pools.node.url)
    settings.cache_clear()
    yield lambda *more: run(["session", "rm", "s", *more])
    settings.cache_clear()


def folder(pools):
    return pools.sessions.folder("default", "s")


def said(pools):
    return [message.content for message in pools.sessions.head("default", "s").messages[::2]]


def delete(pools):
    shutil.rmtree(folder(pools))


def damage(pools):
    for path in folder(pools).glob("*.manifest"):
        path.write_bytes(b"no manifest")


@pytest.mark.parametrize(
    ("harm", "code"), [(delete, "session_gone"), (damage, "session_unreadable")]
)
def test_a_session_without_its_files_goes_on_only_when_it_is_deleted(pools, rm, harm, code):
    pools.start()
    pools.say("r1", LONG)
    pools.until_written()
    harm(pools)
    pools.ask("r2", "And then?")
    refused = pools.end("r2")
    assert (refused["status"], refused["code"]) == ("failed", code)
    assert rm() == 0
    pools.say("r3", "Hello")
    assert said(pools) == ["Hello"]


def test_a_session_in_use_is_removed_only_by_force_and_what_ran_is_not_kept(pools, rm, judge):
    pools.start(step_s=0.01)
    pools.say("r1", LONG)
    pools.ask("r2", "And then?", max_tokens=150)
    pools.ask("r3", "Hello")
    pools.until_tokens("r2", 5)
    assert rm() == 1
    assert rm("--force") == 0
    job = pools.end("r2")
    assert (job["status"], job["code"]) == ("finished", "session_not_saved")
    assert "changed or deleted meanwhile" in job["error"]
    assert pools.end("r3")["status"] == "finished"
    assert said(pools) == ["Hello"]
    assert judge.agrees(pools, "r2") and judge.agrees(pools, "r3")


def test_before_its_first_turn_has_ended_there_is_no_session_to_remove(pools, rm):
    pools.start(step_s=0.01)
    pools.ask("r1", LONG, max_tokens=60)
    pools.until_tokens("r1", 5)
    assert (rm(), rm("--force")) == (1, 1)
    assert pools.end("r1").get("code") is None
    assert said(pools) == [LONG]
