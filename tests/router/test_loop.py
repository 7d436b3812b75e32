"""The router's loop against a real store: what becomes of each message, and what is left alone."""

import time
from copy import copy

import msgpack
import msgspec
import pytest

from router.burden import QUEUED_MOST
from router.consumer import RING_BLOCK_S
from router.loop import Router
from router.sight import LOADS_AGE_S
from workers.address import parse_networks
from workers.wire import GROUP, KEEP_S, SLA_CLASSES, Request, WebhookTarget

HOOK = "http://127.0.0.1:9/hook"


@pytest.fixture
def make_router(store, text):
    def make(name="router-0"):
        router = Router(store, name, text, parse_networks("127.0.0.0/8"))
        router.join()
        return router

    return make


def add(store, fields, sla="standard"):
    entry_id = store.redis.xadd(store.keys.requests(sla), {"m": msgpack.packb(fields)})
    return f"{sla}-{entry_id.decode()}"


def add_plain(store, *words, sla="standard"):
    """As redis-cli sends it: words, nothing else."""
    reply = store.redis.execute_command("XADD", store.keys.requests(sla), "*", *words)
    return f"{sla}-{reply.decode()}"


def queued(store, pool="cpu"):
    return [item.decode() for item in store.redis.lrange(store.keys.queue(pool), 0, -1)]


def left(store, sla="standard"):
    """Messages in the stream, and how many of them somebody holds."""
    key = store.keys.requests(sla)
    return store.redis.xlen(key), store.redis.xpending(key, GROUP)["pending"]


def dead(store):
    return [fields for _, fields in store.redis.xrange(store.keys.dead)]


def drain(router):
    for _ in range(50):
        if router.turn() is None:
            return
    raise AssertionError("the router finds no end")


def test_a_request_goes_into_the_queue_of_the_ready_pool(store, report, make_router):
    report()
    request_id = add(store, {"prompt": "Hello", "max_tokens": 5, "metadata": {"order": 7}})
    drain(make_router())
    assert queued(store) == [request_id]
    assert left(store) == (0, 0)
    job = store.job(request_id)
    assert (job["status"], job["pool"], job["sla"]) == ("queued", "cpu", "standard")
    assert job["reason"] == "cpu: ready, gpu is not reporting"
    assert job["metadata"] == {"order": 7}
    request = msgspec.msgpack.decode(job["request"], type=Request)
    assert (request.id, request.params.max_tokens) == (request_id, 5)


def test_what_waited_for_its_session_goes_to_a_pool_that_is_there(store, report, make_router):
    report("gpu")
    router = make_router()
    asked = {"prompt": "Hello", "session_id": "s", "max_tokens": 5}
    first, second = add(store, asked), add(store, asked)
    drain(router)
    assert (queued(store, "gpu"), store.job(second)["pool"]) == ([first], "gpu")
    store.redis.delete(store.keys.pool("gpu", "gpu"))
    store.cancel(first)  # so that the next one is let in
    report("cpu")
    end = time.monotonic() + 20
    while queued(store) != [second]:
        assert time.monotonic() < end
        router.turn()
        time.sleep(0.02)
    assert store.job(second)["pool"] == "cpu" and queued(store, "gpu") == []


def test_a_long_session_without_max_tokens_goes_where_there_is_most_room(
    store, report, make_router
):
    """What of the output has no room is cut off once the prompt is known."""
    report("gpu", blocks=3)
    report("cpu", blocks=1)
    store.redis.hset(store.keys.session("s"), mapping={"pool": "cpu", "tokens": 760})
    said = [{"role": "user", "content": "Hello"}]
    first = add(store, {"messages": said, "session_id": "s"})
    drain(make_router())
    assert store.job(first)["status"] == "queued"
    assert queued(store, "gpu") == [first]


def test_what_waits_for_its_session_expires_on_time(store, report, make_router):
    report()
    router = make_router()
    first = add(store, {"prompt": "Hello", "session_id": "s", "max_tokens": 5})
    drain(router)
    asked = {"prompt": "Hello", "session_id": "s", "max_tokens": 5, "deadline_ms": 1500}
    second = add(store, asked)
    drain(router)
    assert store.job(second)["status"] == "queued"
    end = time.monotonic() + 20
    while store.job(second)["status"] == "queued":
        assert time.monotonic() < end
        router.turn()
        time.sleep(0.02)
    assert (store.job(first)["status"], store.job(second)["status"]) == ("queued", "expired")


def test_plain_words_are_a_request(store, report, make_router):
    report()
    words = ["prompt", "Hello there", "max_tokens", "16", "temperature", "0.5", "webhook_url", HOOK]
    request_id = add_plain(store, *words, sla="realtime")
    drain(make_router())
    request = msgspec.msgpack.decode(store.job(request_id)["request"], type=Request)
    assert queued(store) == [request_id]
    assert (request.sla, request.params.max_tokens, request.webhook.url) == ("realtime", 16, HOOK)


def test_a_request_accepted_by_the_http_door_is_routed_once(store, report, make_router):
    report()
    body = msgpack.packb({"id": "a", "tenant": "acme", "prompt": "Hello"})
    accepted = store.accept(request_id="acme--a", tenant="acme", sla="batch", body=body)
    assert accepted.is_new
    drain(make_router())
    assert queued(store) == ["acme--a"]
    assert store.job("acme--a")["status"] == "queued"


def test_a_request_cancelled_before_it_is_routed_ends_once_and_posts_its_webhook(
    store, report, make_router
):
    report()
    body = msgpack.packb({"id": "a", "prompt": "Hello", "webhook_url": HOOK})
    hook = WebhookTarget(url=HOOK)
    store.accept(
        request_id="a",
        tenant="default",
        sla="batch",
        body=body,
        webhook=hook,
        metadata={"order": 7},
    )
    assert store.cancel("a") == "cancelled"
    drain(make_router())
    assert queued(store) == []
    assert queued(store, "webhooks") == ["wh-a-1"]
    assert (store.job("a")["status"], store.job("a")["metadata"]) == ("cancelled", {"order": 7})


def test_the_second_request_of_an_id_is_dropped(store, report, make_router):
    report()
    for prompt in ("first", "second"):
        add(store, {"id": "a", "prompt": prompt})
    add(store, {"id": "a", "prompt": "the same id on another stream"}, sla="batch")
    drain(make_router())
    assert queued(store) == ["a"]
    assert left(store) == left(store, "batch") == (0, 0)


BAD = [
    ({b"m": b"\xc1garbage"}, "undecodable"),
    ({b"m": msgpack.packb([1, 2])}, "undecodable"),
    ({b"prompt": b"\xff\xfe"}, "bad_request"),
    ({b"max_tokens": b"5"}, "bad_request"),
    ({b"prompt": b"Hello", b"max_tokens": b"1000000"}, "bad_request"),
    ({b"prompt": b"Hello", b"model": b"gpt-4"}, "model_not_found"),
    ({b"prompt": b"Hello", b"sla": b"batch"}, "bad_request"),
    ({b"prompt": b"Hello", b"webhook_url": b"https://10.0.0.1/"}, "bad_request"),
    ({b"prompt": b"Hello", b"id": b"a--b"}, "bad_request"),
    ({b"prompt": b"Hello", b"session_id": b"../s"}, "bad_request"),
]


@pytest.mark.parametrize(("entry", "code"), BAD)
def test_what_is_no_request_fails_in_words_and_is_a_dead_letter(
    store, report, make_router, entry, code
):
    report()
    entry_id = store.redis.xadd(store.keys.requests("standard"), entry).decode()
    good = add(store, {"prompt": "neighbour"})
    drain(make_router())
    job = store.job(f"standard-{entry_id}")
    assert (job["status"], job["code"]) == ("failed", code)
    (letter,) = dead(store)
    assert letter[b"reason"].decode() == job["error"]
    assert letter[b"entry"].decode() == entry_id
    assert queued(store) == [good]
    assert left(store) == (0, 0)


def test_a_refusal_stands_under_the_senders_own_id_and_goes_to_its_webhook(
    store, report, make_router
):
    report()
    add(store, {"id": "mine", "prompt": "Hello", "max_tokens": -5, "webhook": {"url": HOOK}})
    drain(make_router())
    assert store.job("mine")["error"].startswith("max_tokens: must be an integer from 1 to ")
    assert queued(store, "webhooks") == ["wh-mine-1"]


def test_a_bad_message_cannot_end_a_good_request_of_the_same_id(store, report, make_router):
    report()
    add(store, {"id": "a", "prompt": "Hello"})
    add(store, {"id": "a", "prompt": ""})
    drain(make_router())
    assert store.job("a")["status"] == "queued"
    assert len(dead(store)) == 1


def test_an_expired_request_is_not_run(store, report, make_router):
    report()
    request_id = add(store, {"prompt": "Hello", "deadline_ms": 1, "webhook": {"url": HOOK}})
    time.sleep(0.01)
    drain(make_router())
    assert store.job(request_id)["status"] == "expired"
    assert queued(store) == [] and dead(store) == []
    assert queued(store, "webhooks") == [f"wh-{request_id}-1"]


def test_nothing_is_read_while_no_pool_is_ready(store, report, make_router):
    report(state="loading")
    request_id, router = add(store, {"prompt": "Hello"}), make_router()
    assert router.turn() > 0
    assert left(store) == (1, 0)
    report()
    time.sleep(0.3)  # the look at the pools is so old at most
    drain(router)
    assert queued(store) == [request_id]


def test_what_the_pools_have_no_room_for_stays_in_the_stream(store, report, make_router):
    report(capacity=2)
    ids = [add(store, {"prompt": "Hello"}) for _ in range(10)]
    router = make_router()
    for _ in range(5):
        router.turn()
    assert queued(store) == ids[: 2 * QUEUED_MOST]
    assert left(store) == (10 - 2 * QUEUED_MOST, 0)
    store.redis.ltrim(store.keys.queue("cpu"), 3, -1)
    for _ in range(5):
        router.turn()
    assert left(store) == (10 - 2 * QUEUED_MOST - 3, 0)


def test_urgent_requests_overtake_what_waits_in_the_streams(store, report, make_router):
    report(capacity=6)
    for _ in range(30):
        add(store, {"prompt": "later"}, sla="batch")
    urgent = [add(store, {"prompt": "now"}, sla="realtime") for _ in range(30)]
    make_router().turn()
    placed = queued(store)
    assert placed[:12] == urgent[:12]  # what is less urgent takes no room from them
    assert len(placed) == 14  # and had its turns all the same: the weights are 8 and 1


def test_a_request_that_no_pool_can_ever_hold_is_refused(store, report, make_router):
    report(blocks=1)
    ids = [add(store, {"prompt": "Hello", "max_tokens": n}) for n in (100, 10)]
    drain(make_router())  # 1 block of 256 tokens is more than the model's context of 128
    assert queued(store) == ids


@pytest.fixture
def roomy(store, text):
    """A router whose model has a longer context than a block of memory."""
    longer = copy(text)
    longer.context_length = 4096
    router = Router(store, "router-0", longer, ())
    router.join()
    return router


LARGE = {
    "prompt": {"token_ids": [5] * 300, "max_tokens": 5},
    "output": {"token_ids": [5], "max_tokens": 1000},
}


@pytest.mark.parametrize("large", LARGE.values(), ids=LARGE)
@pytest.mark.parametrize("becomes", ["ready", "absent"])
def test_what_only_a_pool_that_loads_may_hold_waits_until_it_has_loaded(
    store, report, roomy, large, becomes
):
    """The smaller pool is there first when a node starts: that is no reason to refuse."""
    report("cpu", blocks=1)
    report("gpu", state="loading", blocks=0)
    large, small = add(store, large), add(store, {"token_ids": [5], "max_tokens": 5})
    roomy.turn()
    assert (store.job(large), queued(store)) == (None, [small])
    report("gpu", state=becomes, blocks=16)
    roomy.sight._loads_at = float("-inf")
    roomy.turn()
    assert store.job(large)["status"] == {"ready": "queued", "absent": "failed"}[becomes]
    assert left(store) == (0, 0)


def test_a_router_takes_up_what_it_left_under_its_name(store, report, make_router):
    report()
    request_id, router = add(store, {"prompt": "Hello"}), make_router()
    router.consumer.read("standard", 10)  # and is killed
    assert left(store) == (1, 1)
    make_router()
    assert queued(store) == [request_id]


def test_a_router_takes_over_what_another_left(store, report, make_router):
    report()
    request_id = add(store, {"prompt": "Hello"})
    make_router("other").consumer.read("standard", 10)
    router = make_router()
    router.turn()
    assert queued(store) == []  # it may still be at it
    time.sleep(store.lease_s + 0.1)
    router._housekeeping_at = float("-inf")
    router.turn()
    assert queued(store) == [request_id]


def test_a_message_that_ends_its_readers_is_poison_and_its_neighbours_are_not(
    store, report, make_router
):
    report()
    poison = add(store, {"id": "poison", "prompt": "kills"})
    ids = [add(store, {"prompt": "neighbour"}) for _ in range(3)]
    consumer = make_router().consumer
    consumer.read("standard", 10)
    for _ in range(store.max_attempts - 1):
        next(consumer.own_pending())  # each time it dies at the first one
    assert poison.startswith("standard-")
    make_router()
    assert queued(store) == ids
    job = store.job("poison")
    assert (job["status"], job["code"]) == ("failed", "poison")
    assert "4 times in a row" in job["error"]
    assert len(dead(store)) == 1


def test_a_held_message_is_nobodys_to_take_over_and_no_poison(store, report, make_router):
    report()
    request_id, router = add(store, {"prompt": "Hello"}), make_router()
    entries = router.consumer.read("standard", 10)
    report(state="loading")
    router.sight._loads_at = float("-inf")
    router.handle(entries)
    assert [held.entry for held in router.held] == entries
    key = store.keys.requests("standard")
    store.redis.xclaim(key, GROUP, "router-0", 0, [entries[0].entry_id], idle=60_000, retrycount=4)
    router._alive_at = float("-inf")
    router.say_alive()
    (pending,) = store.redis.xpending_range(key, GROUP, "-", "+", 10)
    assert pending["times_delivered"] == 1 and pending["time_since_delivered"] < 60_000
    report()
    router.sight._loads_at = float("-inf")
    router.turn()
    assert (queued(store), router.held) == ([request_id], [])


@pytest.mark.parametrize("door", ["http", "stream"])
def test_a_held_message_that_its_slow_router_takes_for_abandoned_is_not_lost(
    store, report, make_router, door
):
    """Found by tests/chaos: a starved router claimed what it held itself, and let it go."""
    report()
    fields = {"id": "mine", "prompt": "Hello"}
    if door == "http":
        body = msgpack.packb(fields)
        store.accept(request_id="mine", tenant="default", sla="standard", body=body)
    else:
        add(store, fields)
    router = make_router()
    entries = router.consumer.read("standard", 10)
    report(state="loading")
    router.sight._loads_at = float("-inf")
    router.handle(entries)
    key = store.keys.requests("standard")
    store.redis.xclaim(key, GROUP, "router-0", 0, [entries[0].entry_id], idle=60_000)
    router.handle(router.consumer.abandoned(1000))
    assert (left(store), len(router.held)) == ((1, 1), 1)
    report()
    router.sight._loads_at = float("-inf")
    router.turn()
    assert (queued(store), left(store)) == (["mine"], (0, 0))


def test_a_deleted_message_is_let_go(store, report, make_router):
    report()
    request_id, router = add(store, {"prompt": "Hello"}), make_router()
    router.consumer.read("standard", 10)
    store.redis.xdel(store.keys.requests("standard"), request_id.removeprefix("standard-"))
    make_router()
    assert left(store) == (0, 0)


def test_the_bell_rings_for_what_came_before_and_consumes_nothing(store, make_router):
    router = make_router()
    add(store, {"prompt": "Hello"}, sla="batch")
    begin = time.monotonic()
    router.consumer.ring()
    rang_s = time.monotonic() - begin
    assert left(store, "batch") == (1, 0)
    router.consumer.ring()  # the same message does not ring again
    assert rang_s < RING_BLOCK_S <= time.monotonic() - begin + 0.01


def test_the_router_says_that_it_lives(store, make_router):
    make_router("router-7")
    assert 0 < store.redis.ttl(store.keys.router("router-7")) <= 5


def test_the_streams_have_an_expiry_that_a_living_router_renews(store, make_router):
    router = make_router()
    assert {store.redis.ttl(store.keys.requests(sla)) for sla in SLA_CLASSES} == {KEEP_S}
    store.redis.expire(store.keys.requests("batch"), 100)
    router._housekeeping_at = float("-inf")
    router.turn()
    assert store.redis.ttl(store.keys.requests("batch")) == KEEP_S


# --- sessions ---


def ask(store, request_id, session_id="s", **fields):
    messages = [{"role": "user", "content": "Hello"}]
    asked = {"id": request_id, "messages": messages, "session_id": session_id, **fields}
    return add(store, asked)


def test_requests_of_a_session_are_queued_one_at_a_time(store, report, make_router):
    report()
    for request_id in ("r1", "r2"):
        ask(store, request_id)
    ask(store, "r3", session_id="other")
    drain(make_router())
    assert queued(store) == ["r1", "r3"]
    assert store.job("r2")["reason"].endswith("; waits for its session, behind 1")
    assert left(store) == (0, 0)


def test_a_session_goes_home(store, report, make_router):
    """To the pool that ran it last, although the other one is preferred."""
    report("cpu")
    router = make_router()
    ask(store, "r1")
    drain(router)
    [item] = store.claim("cpu", "w1", 1)
    store.cancel("r1")
    store.hand_back("cpu", [item])
    report("gpu")
    time.sleep(LOADS_AGE_S)
    ask(store, "r2")
    ask(store, "r3", session_id="other")
    drain(router)
    assert (queued(store, "cpu"), queued(store, "gpu")) == (["r2"], ["r3"])
    assert store.job("r2")["reason"] == "cpu: keeps the session"


def test_files_of_a_routed_session_are_asked_for(store, report, text):
    told = []
    router = Router(store, "router-0", text, (), prefetch=lambda *session: told.append(session))
    router.join()
    report()
    ask(store, "r1")
    ask(store, "r2", tenant="acme")
    ask(store, "r1")
    add(store, {"prompt": "Hello"})
    drain(router)
    assert told == [("default", "s"), ("acme", "s")]
