"""What a node leaves in Redis: only keys of its prefix, and each of them expires."""

import httpx

from tests.node.running_node import wait_for


def test_every_key_has_the_prefix_and_an_expiry(node, receiver):
    hook = ["webhook_url", receiver.url]
    ids = [
        node.add("prompt", "Hello", "max_tokens", "3", *hook),
        node.add("prompt", "Hello", "max_tokens", "-3", *hook),
        node.add("prompt", "Hello", "max_tokens", "2000", sla="batch"),
    ]
    httpx.post(f"{node.url}/v1/jobs", json={"id": "kept", "prompt": "Hello", "max_tokens": 3})
    wait_for(lambda: receiver.of(ids[0]) and receiver.of(ids[1]), "webhooks")
    wait_for(lambda: node.num_tokens(ids[2]) > 2, "tokens")
    node.store.cancel(ids[2])
    node.end(ids[2])
    ttls = {key.decode(): node.store.redis.ttl(key) for key in node.store.redis.scan_iter()}
    assert [key for key in ttls if not key.startswith("nodetest:")] == []
    assert sorted(key for key, ttl_s in ttls.items() if ttl_s == -1) == []
