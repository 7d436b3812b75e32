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
    assert [key for key in ttls(node) if not key.startswith("nodetest:")] == []
    assert forever(node) - node_keys(node) == set(), "a request's keys expire from the beginning"
    wait_for(lambda: not forever(node), "maintenance comes round")


def ttls(node) -> dict[str, int]:
    """Seconds by key; -1: it stays for ever."""
    return {key.decode(): node.store.redis.ttl(key) for key in node.store.redis.scan_iter()}


def forever(node) -> set[str]:
    return {key for key, ttl_s in ttls(node).items() if ttl_s == -1}


def node_keys(node) -> set[str]:
    """Made as programs start, RQ's without an expiry: the next round of maintenance gives it."""
    keys = node.store.keys
    return {*keys.lasting(), *keys.registries()}
