"""A request moves to the other pool and back in mid-generation, and nobody can tell."""

import pytest

from tests.workers.session.conftest import LONG


def moved(pools, request_id, pool, count=10):
    """Move it, wait until it has gone on there for some tokens; how many it had before."""
    have = pools.redis.xlen(pools.keys.tokens(request_id))
    assert pools.store.move(request_id, pool) == "moving"
    pools.node.until(lambda: pools.store.job(request_id).get("pool") == pool, 30)
    pools.until_tokens(request_id, have + count)
    return have


def reused(pools):
    """Tokens that both pools did not compute, or only because that was quicker than reading."""
    names = ("reused_tokens", "skipped_tokens")
    return sum(load.kv.get(name, 0) for load in pools.store.loads() for name in names)


@pytest.mark.parametrize("session", ["s", None])
def test_there_and_back_computes_no_token_again(pools, judge, session):
    cpu, gpu = pools.start("cpu", 0.01), pools.start("gpu", 0.01)
    more = {} if session else {"token_ids": tuple(range(5, 400))}
    pools.ask("r1", LONG if session else None, session=session, max_tokens=200, **more)
    pools.until_tokens("r1", 10)
    known = [moved(pools, "r1", pool) for pool in ("gpu", "cpu", "gpu")]
    job = pools.end("r1")
    assert (job["status"], job["pool"]) == ("finished", "gpu")
    assert job["cached_tokens"] == 0, "it was all computed for this request"
    pools.node.until(lambda: reused(pools) >= 3 * (job["prompt_tokens"] - 1) + sum(known), 20)
    assert judge.agrees(pools, "r1")
    assert cpu.poll() is None and gpu.poll() is None
    if session:
        assert pools.sessions.head("default", "s").last_request == "r1"


def sizes(pools, kind):
    return [path.stat().st_size for path in (pools.home / "kv" / "objects").rglob(f"*.{kind}")]


def test_a_move_in_a_long_turn_carries_only_its_end(pools, judge):
    """Full blocks were written while it ran."""
    pools.start("cpu", 0.02), pools.start("gpu")
    pools.ask("r1", LONG * 2, max_tokens=200)
    pools.node.until(lambda: len(sizes(pools, "block")) == 3, 30)
    pools.until_tokens("r1", 5)
    moved(pools, "r1", "gpu", 1)
    assert pools.end("r1")["status"] == "finished"
    pools.node.until(lambda: carried(pools) > 0, 20)
    assert carried(pools) <= max(sizes(pools, "tail")) + max(sizes(pools, "state"), default=0)
    assert judge.agrees(pools, "r1")


def carried(pools):
    """Bytes that the first pool wrote of requests that left it."""
    [load] = [load for load in pools.store.loads() if load.pool == "cpu"]
    return load.kv["suspended_bytes"]


def test_the_next_turn_may_be_the_other_pools(pools, judge):
    pools.start("cpu"), pools.start("gpu")
    one = pools.say("r1", LONG)
    two = pools.say("r2", "And then?", pool="gpu")
    assert two["cached_tokens"] == one["prompt_tokens"] + one["output_tokens"] - 1
    three = pools.say("r3", "And then?", pool="cpu")
    assert three["cached_tokens"] == two["prompt_tokens"] + two["output_tokens"] - 1
    assert all(judge.agrees(pools, request_id) for request_id in ("r1", "r2", "r3"))


@pytest.mark.parametrize("model", ["tiny_llama"])
def test_a_move_to_nowhere_changes_nothing(pools, judge):
    pools.start(step_s=0.01)
    pools.ask("r1", LONG, max_tokens=100)
    pools.until_tokens("r1", 5)
    pools.redis.publish(pools.keys.control, "move r1 tpu")
    pools.redis.publish(pools.keys.control, "move r1 cpu")
    pools.redis.publish(pools.keys.control, "move nobody gpu")
    assert pools.end("r1")["status"] == "finished"
    assert judge.agrees(pools, "r1")
