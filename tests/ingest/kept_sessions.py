"""Sessions as a pool leaves them, on real files: made without computing anything."""

from dataclasses import replace

from kv_tier.carried import Node
from kv_tier.manifest import Checkpoint, Manifest, Message
from kv_tier.objects import Source
from kv_tier.prefix import Sizes
from kv_tier.tier import KvTier, TierLimits

SIZES = Sizes(fingerprint=b"f" * 32, block_bytes=8192, token_bytes=32, state_bytes=5000)
NODE = Node("tiny", "0123456789abcdef", "1", SIZES)


def tier_at(home) -> KvTier:
    (home / "kv").mkdir(parents=True, exist_ok=True)
    return KvTier(home / "kv", TierLimits())


def keep(tier, session_id, *, num_tokens=600, node=NODE, tenant="default", **changes) -> Manifest:
    """A session whose KV is on the disk: all of its tokens but the last one have KV."""
    token_ids = tuple((7 * i + len(session_id)) % 500 for i in range(num_tokens))
    sizes, num_kv = node.sizes, num_tokens - 1
    chain = tier.chain(tenant, sizes.fingerprint)
    blocks = tuple(chain.block_keys(token_ids[:num_kv]))
    end = chain.key_at(token_ids, num_kv)
    tail = end if num_kv % 256 else None
    points = (Checkpoint(num_kv, end),) if sizes.state_bytes and num_kv else ()

    def source(kind, key, count):
        payload = key * (sizes.payload_bytes(kind, count) // 32 + 1)
        payload = payload[: sizes.payload_bytes(kind, count)]
        return Source(key, kind, count, (payload,), sizes.fingerprint, tenant)

    sources = [source("block", key, 256) for key in blocks]
    sources += [source("tail", tail, num_kv % 256)] if tail else []
    sources += [source("state", point.key, point.position) for point in points]
    tier.put(tenant, sources)
    fence = tier.sessions.take(tenant, session_id, 0)
    span = (5, 9) if num_tokens >= 9 else (0, 0)
    messages = (Message("user", "hi"), Message("assistant", "hello", *span))
    manifest = Manifest(
        tenant=tenant, session_id=session_id, generation=1, fence=fence,
        fingerprint=sizes.fingerprint, model=node.model, weights_digest=node.weights_digest,
        arithmetic_version=node.arithmetic_version, created_ms=1000, used_ms=2000,
        token_ids=token_ids, messages=messages, num_kv=num_kv, blocks=blocks, tail=tail,
        checkpoints=points, last_request="r-1", digest="00000000000000aa",
    )  # fmt: skip
    manifest = replace(manifest, **changes)
    tier.commit(manifest)
    return manifest


def paths_of(tier, manifest):
    """Every object it names."""
    from kv_tier.names import kind_and_key, links_of

    return [tier.objects.path(*kind_and_key(link.name)) for link in links_of(manifest)]
