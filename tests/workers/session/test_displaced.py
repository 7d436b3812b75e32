"""Work that gives way to more urgent work, or goes to another pool after its first token, goes on
with the same tokens, and nothing of it is computed twice."""

import pytest

from tests.workers.session.conftest import LONG

PROMPT = tuple(range(5, 400))


def load(pools, pool="cpu"):
    loads = [one for one in pools.store.loads() if one.pool == pool and one.state == "ready"]
    return loads[0] if loads else None


def computed(pools):
    return load(pools).kv["computed_prompt_tokens"]


def until_ready(pools, pool="cpu"):
    pools.node.until(lambda: load(pools, pool) is not None, 60)
    return load(pools, pool)


def test_memory_of_a_batch_request_goes_to_an_urgent_one_and_comes_back(pools, judge):
    pools.start("cpu", 0.02, LOCKSTEP_KV_MIB="1")
    blocks = until_ready(pools).total_blocks
    pools.ask("slow", session=None, token_ids=PROMPT, max_tokens=blocks * 256 - 395, sla="batch")
    pools.until_tokens("slow", 20)
    pools.ask("now", session=None, token_ids=PROMPT[:300], max_tokens=8, sla="realtime")
    assert pools.end("now")["status"] == "finished"
    assert pools.store.job("slow")["status"] == "running"
    had = pools.redis.xlen(pools.keys.tokens("slow"))
    pools.until_tokens("slow", had + 10)
    pools.node.until(lambda: load(pools).kv["reused_tokens"] >= len(PROMPT) + had - 1, 20)
    assert computed(pools) <= len(PROMPT) + 300
    pools.store.cancel("slow")
    assert pools.end("slow")["status"] == "cancelled"
    assert judge.agrees(pools, "now")
    ids, _ = judge.answer(pools.request("slow"))
    mine = pools.token_ids("slow")
    assert len(mine) >= had + 10 and mine == ids[: len(mine)]


@pytest.mark.parametrize("wish", ["cancel", "move"])
def test_what_waits_in_files_can_be_cancelled_and_moved(pools, judge, wish):
    """While the urgent one has its memory."""
    pools.start("cpu", 0.05, LOCKSTEP_KV_MIB="1")
    if wish == "move":
        pools.start("gpu")
        until_ready(pools, "gpu")  # now, for the urgent one does not last for ever
    blocks = until_ready(pools).total_blocks
    pools.ask("slow", session=None, token_ids=PROMPT, max_tokens=blocks * 256 - 395, sla="batch")
    pools.until_tokens("slow", 5)
    full = {"token_ids": PROMPT[:300], "max_tokens": blocks * 256 - 300}
    pools.ask("now", session=None, sla="realtime", **full)
    pools.until_tokens("now", 3)
    had = pools.redis.xlen(pools.keys.tokens("slow"))
    if wish == "cancel":
        pools.store.cancel("slow")
        assert pools.end("slow")["status"] == "cancelled"
    else:
        pools.store.move("slow", "gpu")
        pools.until_tokens("slow", had + 5)
        assert pools.store.job("slow")["pool"] == "gpu"
        assert load(pools, "gpu").kv["computed_prompt_tokens"] == 0
    assert pools.store.job("now")["status"] == "running"
    ids, _ = judge.answer(pools.request("slow"))
    mine = pools.token_ids("slow") if wish == "cancel" else ids
    assert mine == ids[: len(mine)]


def test_after_its_first_token_a_request_goes_to_the_pool_that_is_to_decode(pools, judge):
    pools.ask("r1", LONG, session=None, token_ids=PROMPT, max_tokens=400)
    pools.redis.hset(pools.keys.job("r1"), "then_pool", "gpu")
    pools.start("cpu", 0.05)
    pools.until_tokens("r1", 5)
    assert pools.store.job("r1")["pool"] == "cpu", "the other pool is not there yet"
    pools.start("gpu")
    job = pools.end("r1")
    assert (job["status"], job["pool"]) == ("finished", "gpu")
    assert judge.agrees(pools, "r1")
