"""Tokens of one answer come from one set of weights and one arithmetic, whoever goes on with it."""

from tests.workers.queue.fake_engine import FakeEngine, digest, expected_text, token
from workers.queue.pool_worker import PoolWorker
from workers.queue.pulse import Pulse
from workers.queue.runner import after_layer
from workers.wire import TokenEvent


def claim_and_vanish(node, weights, tokens):
    """A worker of these weights takes r1, says so many tokens and is heard no more."""
    node.store.weights = weights
    (item,) = node.store.claim("cpu", "gone", 1)
    events = [
        TokenEvent(
            index=n, token_id=token("r1", n), text=f" {token('r1', n)}", digest=digest("r1", n)
        )
        for n in range(tokens)
    ]
    if events:
        node.store.journal("cpu", [(item, events)])
    node.expire_leases()
    assert node.store.reap("cpu") == ["r1"]


def run_by(node, weights):
    """What becomes of r1 at a worker of these weights."""
    node.store.weights, pulse = weights, Pulse()
    engine = FakeEngine(after_layer(pulse))
    PoolWorker(node.store, "cpu", engine, name="next", capacity=4, pulse=pulse).work(burst=True)
    node.check_ended("r1")
    return node.store.job("r1")


def test_what_has_begun_is_not_gone_on_with_by_other_weights(node):
    node.route("r1", max_tokens=5)
    claim_and_vanish(node, "old:1", 2)
    job = run_by(node, "new:1")
    assert (job["status"], job["code"]) == ("failed", "other_weights")
    assert len(node.store.tokens("r1")) == 3, "two tokens and the end"


def test_the_same_weights_go_on(node):
    node.route("r1", max_tokens=5)
    claim_and_vanish(node, "old:1", 2)
    job = run_by(node, "old:1")
    assert (job["status"], job["text"]) == ("finished", expected_text("r1", 5))


def test_what_has_no_token_begins_anew_with_any_weights(node):
    node.route("r1", max_tokens=5)
    claim_and_vanish(node, "old:1", 0)
    claim_and_vanish(node, "new:1", 1)
    assert run_by(node, "new:1")["text"] == expected_text("r1", 5)


def test_what_waits_at_a_node_of_other_weights_than_its_fleets_is_not_begun_there(node):
    """Also of a second home under a name that is taken."""
    node.route("r1", pool="cpu@a")
    seconds, _ = node.redis.time()
    common = {"identity": "model:old:texts:1", "heard_s": seconds}
    node.redis.hset(node.keys.fleet, mapping=common)
    node.store.weights = "new:1"
    assert node.store.claim("cpu@a", "stranger", 1) == []
    node.redis.hset(node.keys.fleet, "heard_s", seconds - 60)
    assert node.store.claim("cpu@a", "stranger", 1), "nobody of the others lives"


def test_what_waits_at_a_node_of_its_fleets_weights_is_begun(node):
    node.route("r1", pool="cpu@a")
    common = {"identity": "model:old:texts:1", "heard_s": node.redis.time()[0]}
    node.redis.hset(node.keys.fleet, mapping=common)
    node.store.weights = "old:1"
    assert node.store.claim("cpu@a", "member", 1)
