"""A full disk, a worker that comes back from the dead, memory that is short: nobody is lied to."""

import signal

import pytest

from tests.workers.session.conftest import LONG


@pytest.fixture
def full(pools):
    """The disk is full as long as this file is there."""
    return pools.home / "disk-is-full"


def history(pools, request_id, *contents):
    """The whole conversation, sent along."""
    roles = ("user", "assistant")
    said = [{"role": roles[n % 2], "content": text} for n, text in enumerate(contents)]
    pools.ask(request_id, messages=tuple(said))
    return pools.end(request_id)


@pytest.mark.parametrize("model", ["tiny_llama"])
def test_a_full_disk_costs_no_answer_and_no_lie(pools, full, judge):
    pools.start(step_s=0.001)
    pools.say("r1", LONG)
    full.touch()
    job = pools.say("r2", "And then?")
    assert (job["code"], "No space left" in job["error"]) == ("session_not_saved", True)
    assert pools.sessions.head("default", "s").last_request == "r1"
    pools.ask("r3", "And what else?")
    refused = pools.end("r3")
    assert (refused["status"], refused["code"]) == ("failed", "session_not_saved")
    assert "send the whole history" in refused["error"]
    pools.ask("p1", session=None, token_ids=tuple(range(5, 300)))
    assert pools.end("p1")["status"] == "finished"
    full.unlink()
    answers = pools.store.job("r1")["text"], job["text"]
    job = history(pools, "r4", LONG, answers[0], "And then?", answers[1], "And what else?")
    assert (job["status"], job.get("code")) == ("finished", None)
    assert len(pools.sessions.head("default", "s").messages) == 6
    assert pools.say("r5", "Good.")["cached_tokens"] > 400
    assert all(judge.agrees(pools, request_id) for request_id in ("r2", "p1", "r4", "r5"))


@pytest.mark.parametrize("moment", ["dies-before-the-commit", "dies-after-the-commit"])
def test_a_pool_that_dies_around_the_commit_leaves_one_turn(pools, judge, moment):
    first = pools.start(step_s=0.001)
    pools.say("r1", LONG)
    (pools.home / moment).touch()
    pools.ask("r2", "And then?")
    assert first.wait(30) == 137
    (pools.home / moment).unlink()
    pools.start()
    assert pools.end("r2")["status"] == "finished"
    log = pools.sessions.head("default", "s")
    assert [message.role for message in log.messages] == ["user", "assistant"] * 2
    assert log.token_ids == (*pools.request("r2").token_ids, *pools.token_ids("r2"))
    pools.say("r3", "And what else?")
    assert all(judge.agrees(pools, f"r{number}") for number in range(1, 4))


@pytest.mark.parametrize("model", ["tiny_llama"])
def test_who_comes_back_from_the_dead_changes_nothing(pools, judge):
    dead = pools.start(step_s=0.02, LOCKSTEP_LEASE_S="1")
    pools.say("r1", LONG)
    pools.ask("r2", "And then?", max_tokens=60)
    pools.until_tokens("r2", 10)
    dead.send_signal(signal.SIGSTOP)
    pools.start(step_s=0.02, LOCKSTEP_LEASE_S="1")
    assert pools.end("r2")["status"] == "finished"
    pools.say("r3", "And what else?")
    log = pools.sessions.head("default", "s")
    dead.send_signal(signal.SIGCONT)
    pools.say("r4", "Good.")
    assert pools.sessions.head("default", "s").messages[:6] == log.messages
    assert dead.poll() is None
    assert all(judge.agrees(pools, f"r{number}") for number in range(1, 5))


def test_many_sessions_in_little_memory_are_all_served(pools, judge):
    """Fewer slots and blocks than conversations: what is warm is written, or computed again."""
    pools.start(LOCKSTEP_KV_MIB="4", LOCKSTEP_MAX_BATCH="4")
    ids = []
    for turn in range(3):
        for number in range(8):
            ids.append(f"r{number}-{turn}")
            pools.ask(ids[-1], f"{number}. {LONG}" if turn == 0 else "Go on.", session=f"s{number}")
    assert {pools.end(request_id)["status"] for request_id in ids} == {"finished"}
    assert all(judge.agrees(pools, request_id) for request_id in ids)
    for number in range(8):
        assert len(pools.sessions.head("default", f"s{number}").messages) == 6
