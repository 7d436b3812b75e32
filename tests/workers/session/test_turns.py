"""A conversation with a pool: what was computed once is not computed again, whatever happens."""

import pytest

from tests.workers.session.conftest import LONG


def cached(job):
    return job["cached_tokens"]


def test_a_second_turn_computes_only_what_is_new(pools, judge):
    pools.start()
    one = pools.say("r1", LONG)
    two = pools.say("r2", "And then?")
    assert cached(one) == 0
    assert cached(two) == one["prompt_tokens"] + one["output_tokens"] - 1
    assert judge.agrees(pools, "r1") and judge.agrees(pools, "r2")


def test_two_requests_at_once_are_ordered(pools, judge):
    pools.start()
    for number in range(4):
        pools.ask(f"r{number}", f"{number}. {LONG}")
    jobs = [pools.end(f"r{number}") for number in range(4)]
    log = pools.sessions.head("default", "s")
    assert [m.content for m in log.messages[::2]] == [f"{n}. {LONG}" for n in range(4)]
    assert log.last_request == "r3"
    assert all(cached(job) > 0 for job in jobs[1:])
    assert all(judge.agrees(pools, f"r{number}") for number in range(4))


def test_a_restart_computes_nothing_of_the_history_again(pools, judge):
    first = pools.start()
    one = pools.say("r1", LONG)
    pools.stop(first)
    pools.start()
    two = pools.say("r2", "And then?")
    assert cached(two) == one["prompt_tokens"] + one["output_tokens"] - 1
    assert judge.agrees(pools, "r2")


def test_a_stop_in_mid_turn_goes_on_where_it_was(pools, judge):
    first = pools.start(step_s=0.01)
    pools.ask("r1", LONG, max_tokens=300)
    pools.until_tokens("r1", 20)
    pools.stop(first)
    assert pools.node.status("r1") == "queued"
    pools.start()
    one = pools.end("r1")
    assert cached(one) == 0, "it was all computed for this request"
    pools.node.until(lambda: loads(pools, "reused_tokens") >= one["prompt_tokens"], 20)
    assert judge.agrees(pools, "r1")


def test_a_kill_between_turns_goes_on_from_what_was_written(pools, judge):
    first = pools.start()
    one = pools.say("r1", LONG)
    pools.until_written()
    pools.kill(first)
    pools.start()
    two = pools.say("r2", "And then?")
    assert cached(two) == one["prompt_tokens"] + one["output_tokens"] - 1
    assert judge.agrees(pools, "r2")


def written(pools, kind):
    return len(list((pools.home / "kv" / "objects").rglob(f"*.{kind}")))


def test_a_kill_in_a_long_turn_goes_on_from_what_was_written_behind(pools, judge):
    first = pools.start(step_s=0.01)
    pools.ask("r1", LONG * 2, max_tokens=300)
    pools.until_tokens("r1", 20)
    assert pools.store.job("r1")["prompt_tokens"] // 256 == 3
    pools.node.until(lambda: written(pools, "block") >= 3, 20)
    if pools.model == "tiny_qwen35":
        pools.node.until(lambda: written(pools, "state") >= 1, 20)
    pools.kill(first)
    pools.start()
    one = pools.end("r1")
    assert (one["status"], cached(one)) == ("finished", 0)
    pools.node.until(lambda: loads(pools, "reused_tokens") >= 768, 20)
    assert judge.agrees(pools, "r1")


def loads(pools, name):
    """A count of the living pools, since they began."""
    return sum(load.kv.get(name, 0) for load in pools.store.loads())


def test_a_kill_in_mid_turn_goes_on_from_the_last_turn(pools, judge):
    first = pools.start(step_s=0.03)
    one = pools.say("r1", LONG)
    pools.until_written()
    pools.ask("r2", "And then?", max_tokens=300)
    pools.until_tokens("r2", 4)  # of some thirty: its end is not to come first
    pools.kill(first)
    pools.start()
    two = pools.end("r2")
    assert cached(two) == one["prompt_tokens"] + one["output_tokens"] - 1
    assert judge.agrees(pools, "r2")
    assert pools.sessions.head("default", "s").last_request == "r2"


def test_a_damaged_file_makes_the_hit_shorter(pools, judge):
    first = pools.start()
    one = pools.say("r1", LONG)
    pools.stop(first)
    for path in (pools.home / "kv" / "objects").rglob("*.tail"):
        data = bytearray(path.read_bytes())
        data[5000] ^= 1
        path.write_bytes(data)
    pools.start()
    two = pools.say("r2", "And then?")
    assert cached(two) < one["prompt_tokens"]
    assert judge.agrees(pools, "r2")


def test_a_cancelled_turn_leaves_the_session_as_it_was(pools, judge):
    pools.start(step_s=0.01)
    pools.say("r1", LONG)
    pools.until_written()
    before = pools.sessions.head("default", "s")
    pools.ask("r2", "And then?", max_tokens=2000)
    pools.until_tokens("r2", 5)
    pools.store.cancel("r2")
    assert pools.end("r2")["status"] == "cancelled"
    after = pools.sessions.head("default", "s")
    assert (after.token_ids, after.messages) == (before.token_ids, before.messages)
    pools.say("r3", "What did I say?")
    assert judge.agrees(pools, "r3")


def test_a_prompt_without_a_session_finds_what_a_session_began(pools, judge):
    first = pools.start()
    pools.say("r1", LONG)
    pools.stop(first)
    pools.start()
    prompt = (*pools.request("r1").token_ids, 5, 6, 7)
    pools.ask("r2", session=None, token_ids=prompt)
    assert cached(pools.end("r2")) >= (0 if pools.model == "tiny_qwen35" else 256)
    assert judge.agrees(pools, "r2")


def test_tenants_share_nothing(pools, judge):
    pools.start()
    pools.say("r1", LONG)
    pools.ask("b--r1", LONG, tenant="b")
    assert cached(pools.end("b--r1")) == 0
    assert judge.agrees(pools, "b--r1")


@pytest.mark.parametrize("model", ["tiny_llama"])
def test_a_bad_request_ends_and_the_next_is_served(pools):
    pools.start()
    pools.ask("r1", session_mode="history")  # no messages at all
    job = pools.end("r1")
    assert (job["status"], bool(job["error"])) == ("failed", True)
    assert pools.say("r2", "Hello")["status"] == "finished"


@pytest.mark.parametrize("model", ["tiny_llama"])
def test_a_session_of_other_weights_is_refused_with_the_reason(pools):
    first = pools.start()
    pools.say("r1", LONG)
    pools.stop(first)
    pools.start(LOCKSTEP_MODEL="tiny_qwen3")
    pools.ask("r2", "And then?")
    job = pools.end("r2")
    assert (job["status"], job["code"]) == ("failed", "session_mismatch")
    assert "tiny_llama" in job["error"]
