"""Everything at once: requests by both doors, doubled, cancelled, garbage, and parts are killed.

What must hold afterwards is law two: each accepted request has ended, once, with the text that it
has on a quiet node; each webhook went out under one id; nothing is left anywhere.
"""

import random
import time

import httpx
import pytest
from redis.exceptions import RedisError

from tests.node.running_node import wait_for
from workers.wire import GROUP, SLA_CLASSES

pytestmark = pytest.mark.slow

VICTIMS = ("cpu", "router", "api", "webhooks", "store")
KINDS = 6  # different requests; each is asked many times
ASKED = 90


def fields(kind: int) -> dict[str, object]:
    prompt = f"A list of {kind + 3} animals:"
    return {"prompt": prompt, "max_tokens": 8 + 5 * kind, "temperature": 0.9, "seed": kind}


def insist(action, what):
    """A client that tries again until the node has taken it; ids make that safe."""

    def attempt():
        try:
            return action()
        except (RedisError, httpx.HTTPError):
            return None

    return wait_for(attempt, what)


def by_stream(node, request_id, sla, more):
    words = [str(part) for pair in more.items() for part in pair]
    insist(lambda: node.add("id", request_id, *words, sla=sla), request_id)


def by_http(node, request_id, sla, more):
    body = {"id": request_id, "sla": sla, **more}

    def post():
        answer = httpx.post(f"{node.url}/v1/jobs", json=body, timeout=10)
        assert answer.status_code in (200, 202, 503), answer.text
        return answer.status_code != 503

    insist(post, request_id)


@pytest.mark.parametrize("seed", [1, 2])
def test_law_two_under_a_storm(node, receiver, seed):
    chance = random.Random(seed)
    quiet = [node.end(node.add(*flat(fields(kind))))["text"] for kind in range(KINDS)]
    kinds, cancelled, garbage = {}, set(), 0
    next_kill = time.monotonic() + 1
    for number in range(ASKED):
        kind, request_id = chance.randrange(KINDS), f"storm{seed}-{number}"
        kinds[request_id] = kind
        door, sla = chance.choice([by_stream, by_http]), chance.choice(SLA_CLASSES)
        more = fields(kind) | {"webhook_url": receiver.url}
        for _ in range(chance.choice([1, 1, 1, 2])):
            door(node, request_id, sla, more)
        if chance.random() < 0.1:
            insist(lambda: node.add("prompt", "", sla="batch"), "garbage")
            garbage += 1
        if chance.random() < 0.1:
            victim = chance.choice(list(kinds))
            insist(lambda v=victim: node.store.cancel(v), "cancel")
            cancelled.add(victim)
        if time.monotonic() > next_kill:
            node.program(chance.choice(VICTIMS)).kill()
            next_kill = time.monotonic() + chance.uniform(0.3, 3)
        time.sleep(chance.uniform(0, 0.2))
    wait_for(node.is_ready, "ready again")
    for request_id, kind in kinds.items():
        job = node.end(request_id)
        if request_id in cancelled and job["status"] == "cancelled":
            continue
        assert (job["status"], job["text"]) == ("finished", quiet[kind])
        assert node.journalled(request_id)[1] == quiet[kind]
    wait_for(lambda: all(receiver.of(request_id) for request_id in kinds), "webhooks")
    assert all(len({webhook_id for webhook_id, _ in receiver.of(i)}) == 1 for i in kinds)
    assert garbage <= node.store.redis.xlen(node.store.keys.dead)
    wait_for(lambda: nothing_left(node), "nothing left")


def flat(more):
    return [str(part) for pair in more.items() for part in pair]


def nothing_left(node):
    """No request waits, is held, is leased or counts as active."""
    redis, keys = node.store.redis, node.store.keys
    streams = [redis.xlen(keys.requests(sla)) for sla in SLA_CLASSES]
    pending = [redis.xpending(keys.requests(sla), GROUP)["pending"] for sla in SLA_CLASSES]
    queues = [redis.llen(keys.queue(name)) for name in ("cpu", "gpu", "webhooks")]
    leases = [redis.zcard(keys.wip(name)) for name in ("cpu", "gpu", "webhooks")]
    return not any([*streams, *pending, *queues, *leases, redis.zcard(keys.active)])
