"""The router's loop in a fleet, against a real store: what a node without pools, with other weights
or with too little memory does with what it has read."""

import time
from dataclasses import replace

import msgpack
import pytest

from router import audit as auditing
from router import loop, suiting
from router.burden import QUEUED_MOST
from router.consumer import Entry
from router.loop import Router
from router.membership import Membership
from router.placing import Held
from router.pools import Wanted
from tests.ingest.named_nodes import NamedNode
from tests.router.conftest import MODEL
from tests.router.node_pictures import CPU_COST
from workers.address import parse_networks
from workers.fleet.presence import NodeReport, Presence
from workers.promises import pressure
from workers.wire import GROUP

SLA = "standard"
LEASE_S = 0.5


class Member:
    """A node with a router, and pools that say what a test wants them to say."""

    def __init__(self, url, text, name, identity="same"):
        self.node = NamedNode(url, name, prefix="t", lease_s=LEASE_S)
        self.store, self.redis, self.keys = (
            self.node.store,
            self.node.store.redis,
            self.node.store.keys,
        )
        told = NodeReport(node=name, instance=f"home-{name}")
        self.presence = Presence(self.store, identity, told)
        fleet = Membership(self.presence)
        self.router = Router(
            self.store, f"{name}.router", text, parse_networks("127.0.0.0/8"), fleet=fleet
        )

    def has(self, processor="cpu", **told):
        self.node.report(processor, **({"model": MODEL} | told))

    def loses(self, processor="cpu"):
        pool = f"{processor}@{self.node.name}"
        self.redis.delete(self.keys.pool(pool, f"home{self.node.name}-{pool}-0"))

    def queued(self, pool="cpu"):
        found = self.redis.lrange(self.keys.queue(f"{pool}@{self.node.name}"), 0, -1)
        return [item.decode() for item in found]

    def turns_until(self, true, *others):
        """Its router takes turns, with those of others, until it is true."""
        end = time.monotonic() + 20
        while not true():
            assert time.monotonic() < end, "did not happen"
            for one in (self, *others):
                one.router.turn()
            time.sleep(0.02)


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(auditing, "DOUBT_S", 1.0)
    monkeypatch.setattr(loop, "HOUSEKEEPING_EVERY_S", 0.5)


@pytest.fixture
def member(redis_url, text):
    return lambda name, **options: Member(redis_url, text, name, **options)


def add(member, **fields):
    told = {"max_tokens": 5} | ({} if "messages" in fields else {"prompt": "Hello"}) | fields
    entry_id = member.redis.xadd(member.keys.requests(SLA), {"m": msgpack.packb(told)})
    return f"{SLA}-{entry_id.decode()}"


def read_by(member, consumer):
    """As if it had been read, and its reader killed."""
    member.redis.xreadgroup(GROUP, consumer, {member.keys.requests(SLA): ">"})


def test_what_waits_for_a_larger_node_goes_there_when_that_has_room(member):
    a, b = member("a"), member("b")
    a.has(total_blocks=1)
    b.has(total_blocks=4, state="loading")
    for one in (a, b):
        one.router.join()
    b.presence.say(1.0, 4 * 256)
    request_id = add(a)
    (entry,) = a.router.read(SLA, 1)
    a.router.taker.take(entry)
    (held,) = a.router.held
    a.router.placer.held = [replace(held, wanted=replace(held.wanted, max_tokens=600))]
    for _ in range(3):
        a.router.turn()
        b.router.turn()
    assert a.router.held and b.queued() == []
    b.has(total_blocks=4)
    a.turns_until(lambda: b.queued() == [request_id], b)


def test_a_node_of_other_weights_leaves_what_it_had_read_before_to_others(member):
    a, b = member("a"), member("b", identity="other")
    a.has()
    b.has()
    a.router.join()
    request_id = add(a)
    read_by(a, "b.router")
    b.router.join()
    assert b.router.fleet.refused
    for _ in range(3):
        b.router.turn()
    assert b.queued() == []
    a.turns_until(lambda: a.queued() == [request_id])


def test_what_a_node_holds_whose_pools_are_lost_goes_to_others(member):
    a, b = member("a"), member("b")
    a.has(capacity=1)
    b.has()
    for one in (a, b):
        one.router.join()
    ids = [add(a) for _ in range(QUEUED_MOST + 1)]
    a.router.handle(a.router.read(SLA, len(ids)))
    assert [held.request.id for held in a.router.held] == ids[-1:]
    a.loses()
    a.turns_until(lambda: ids[-1] in b.queued(), b)


def test_what_waits_at_a_node_that_lives_without_a_pool_goes_to_others(member):
    a, b = member("a"), member("b")
    for one in (a, b):
        one.has()
        one.router.join()
    request_id = add(a)
    a.turns_until(lambda: a.queued() == [request_id])
    a.loses()
    a.turns_until(lambda: b.queued() == [request_id], b)


def test_a_session_at_home_at_a_refused_node_goes_on_elsewhere(member):
    a, b = member("a"), member("b", identity="other")
    for one in (a, b):
        one.has()
        one.router.join()
    assert b.router.fleet.refused
    a.redis.hset(a.keys.session("s"), mapping={"pool": "cpu@b", "tokens": 5})
    request_id = add(a, session_id="s")
    a.turns_until(lambda: a.queued() == [request_id])
    assert "taken over" not in a.store.job(request_id)["reason"]


def test_a_session_that_its_home_cannot_hold_any_more_goes_to_a_larger_node(member):
    a, b = member("a"), member("b")
    a.has(total_blocks=1)
    b.has(total_blocks=4)
    for one in (a, b):
        one.router.join()
    a.redis.hset(a.keys.session("s"), mapping={"pool": "cpu@a", "tokens": 300})
    request_id = add(a, messages=[{"role": "user", "content": "Hello"}], session_id="s")
    a.turns_until(lambda: b.queued() == [request_id], b)
    assert "taken over" not in a.store.job(request_id)["reason"]


def test_a_session_whose_home_has_lost_the_pool_that_holds_it_goes_elsewhere(member):
    a, b = member("a"), member("b")
    a.has(total_blocks=4)
    b.has("cpu", total_blocks=1)
    b.has("gpu", total_blocks=4)
    for one in (a, b):
        one.router.join()
    a.router.homes.sight("gpu@b").views()
    b.has("gpu", state="failed")
    a.router.homes.sight("gpu@b")._loads_at = float("-inf")
    held = Held(
        Entry(SLA, "1-0", {}),
        None,
        Wanted("r", SLA, 0, prompt_tokens=600, max_tokens=9),
        "gpu@b",
    )
    a.router.forget()
    assert a.router.placer.plan(held).pool == "cpu@a"


def test_a_refused_node_sheds_nothing(member):
    a, b = member("a"), member("b", identity="other")
    a.has()
    b.has()
    a.router.join()
    b.router.join()
    b.router.overload.max_queue = 0
    request_id = add(a)
    b.router._pressed_at = float("-inf")
    b.router.turn()
    a.turns_until(lambda: a.queued() == [request_id])


def test_a_node_that_is_late_sheds_nothing_that_others_are_quick_with(member):
    a, b = member("a"), member("b")
    a.has(cost=CPU_COST, free_blocks=64)
    b.has(cost=CPU_COST, running=4, prefill_tokens=1_000_000, prefill_by_class={SLA: 1_000_000})
    for one in (a, b):
        one.router.join()
    request_id = add(a)
    b.router.turn()
    a.turns_until(lambda: a.queued() == [request_id])


def test_what_waits_for_nobody_is_counted_all_the_same(member, monkeypatch):
    """No pool of the fleet is ready: it is told, as soon as something waits for long."""
    monkeypatch.setattr(suiting, "PATIENCE_S", 0.0)
    a = member("a")
    a.router.join()
    add(a)
    a.router.turn()
    assert pressure(a.store, SLA).waiting == 1


def test_what_is_abandoned_behind_many_that_are_held_is_found(member):
    a = member("a")
    a.router.join()
    last = [add(a) for _ in range(40)][-1].removeprefix(f"{SLA}-")
    read_by(a, "somebody")
    a.redis.xclaim(a.keys.requests(SLA), GROUP, "somebody", 0, [last], idle=900_000)
    found = [entry.entry_id for entry in a.router.consumer.abandoned(600_000)]
    assert found == [last]
    assert list(a.router.consumer.abandoned(600_000)) == []
