"""A session under the names that another chain gives to the same tokens."""

from dataclasses import replace

from kv_tier.chain import BLOCK_TOKENS, Chain
from kv_tier.manifest import Checkpoint, Manifest
from kv_tier.names import Link, links_of


def renamed(log: Manifest, chain: Chain) -> Manifest:
    """Names follow from tokens, salt and tenant alone; what they name stays the same bytes."""
    token_ids, num_kv = log.token_ids, log.num_kv
    points = (point.position for point in log.checkpoints)
    return replace(
        log,
        blocks=tuple(chain.block_keys(token_ids[:num_kv])),
        tail=chain.key_at(token_ids, num_kv) if num_kv % BLOCK_TOKENS else None,
        checkpoints=tuple(Checkpoint(p, chain.key_at(token_ids, p)) for p in points),
    )


def pairs_of(one: Manifest, other: Manifest) -> list[tuple[Link, Link]]:
    """Each object of a session, by its names in two chains."""
    return list(zip(links_of(one), links_of(other), strict=True))
