"""What only a lost pool could hold waits for it, and ends with a reason when it does not return."""

from dataclasses import replace

import pytest

from router import stranded
from router.loop import Router
from router.replan import Job
from router.replanning import Replanner
from router.sight import Sight
from router.stranded import PATIENCE_S, Stranded
from tests.ingest.named_nodes import NamedNode
from tests.router.conftest import MODEL
from tests.router.node_pictures import cpu, gpu, wanted
from workers.sla import SlaTable
from workers.wire import GROUP, Request, SamplingParams

BIG = Job(wanted("big", prompt=400_000), "gpu")
SMALL_CPU = replace(cpu(), sequence_blocks=64)


def ended(states, job=BIG, pools=None):
    """Ids that are ended at the last of these looks at the gpu, PATIENCE_S / 2 apart."""
    watch = Stranded()
    for number, state in enumerate(states):
        seen = pools or [replace(gpu(), state=state, sequence_blocks=4096), SMALL_CPU]
        late = watch.late(seen, [job], number * PATIENCE_S / 2)
    return [request_id for request_id, _, _ in late]


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        (["failed"] * 2, []),
        (["failed"] * 3, ["big"]),
        (["failed", "loading", "failed"], ["big"]),  # it is tried again and again
        (["failed", "failed", "loading"], []),
        (["failed", "failed", "ready"], []),
        (["failed", "ready", "failed"], []),
    ],
)
def test_it_ends_when_its_pool_has_been_away_for_long(states, expected):
    assert ended(states) == expected


def test_what_another_pool_holds_and_what_runs_is_not_given_up():
    assert ended(["failed"] * 3, Job(wanted("small", prompt=9, output=9), "gpu")) == []
    assert ended(["failed"] * 3, replace(BIG, running=True)) == []


def test_while_no_pool_is_ready_nothing_is_given_up():
    both = [replace(gpu(), state="failed"), replace(cpu(), state="not reporting")]
    assert ended(["failed"] * 3, pools=both) == []


def test_the_router_ends_it_and_says_why(store, report, text, monkeypatch):
    monkeypatch.setattr(stranded, "PATIENCE_S", 0.0)
    report("cpu", blocks=1)
    report("gpu", state="failed")
    router = Router(store, "router-0", text, ())
    router.join()
    put_into_queue(store, "big", "gpu", num_tokens=300)
    router.turn()
    job = store.job("big")
    assert (job["status"], job["code"]) == ("failed", "no_pool")
    assert "gpu has been failed" in job["error"] and "cpu cannot hold" in job["error"]
    assert store.redis.llen(store.keys.queue("gpu")) == 0


def put_into_queue(store, request_id, pool, num_tokens):
    key = store.keys.requests("standard")
    entry_id = store.redis.xadd(key, {"m": b"?"}).decode()
    store.redis.xreadgroup(GROUP, "router-1", {key: ">"})
    params = SamplingParams(max_tokens=1)
    ids = (1,) * num_tokens
    asked = Request(id=request_id, model=MODEL, token_ids=ids, arrival_ms=1000, params=params)
    store.route(sla="standard", entry_id=entry_id, request=asked, pool=pool, reason="test")


def test_what_another_node_of_the_fleet_holds_does_not_end(redis_url, monkeypatch):
    monkeypatch.setattr(stranded, "PATIENCE_S", 0.0)
    node = NamedNode(redis_url, "a")
    node.report("gpu", state="failed")
    node.report("cpu", total_blocks=1, model=MODEL)
    node.store.redis.xgroup_create(node.store.keys.requests("standard"), GROUP, mkstream=True)
    put_into_queue(node.store, "big", "gpu@a", 600)
    replanner = Replanner(node.store, Sight(node.store, MODEL), SlaTable(), "router-0")
    node.store.redis.zadd(node.store.keys.longest, {"a": 900, "b": 900})
    replanner.give_up(0.0)
    assert node.store.job("big")["status"] == "queued"
    node.store.redis.zrem(node.store.keys.longest, "b")
    replanner.give_up(0.0)
    assert node.store.job("big")["code"] == "no_pool"
