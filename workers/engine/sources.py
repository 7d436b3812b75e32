"""What a Kept holds, as files are to have it: each block, then the tail, then the state."""

from collections.abc import Iterator

from kernels.ops import BLOCK_TOKENS
from kv_tier.format import Kind
from kv_tier.objects import Source
from workers.engine.home import Home
from workers.engine.kept import Kept
from workers.engine.payload import Parts


def sources_of(kept: Kept, fingerprint: bytes, home: Home, *, state: bool) -> Iterator[Source]:
    """Their bytes are read when they are written.   state: the recurrent state, too"""
    parent = kept.start

    def source(kind: Kind, key: bytes, num_tokens: int, parts: Parts) -> Source:
        return Source(key, kind, num_tokens, parts, fingerprint, kept.request.tenant, parent)

    for key, block_id in kept.blocks:
        yield source("block", key, BLOCK_TOKENS, home.of_block(block_id))
        parent = key
    if kept.tail is not None:
        key, block_id = kept.tail
        num_tokens = kept.num_kv % BLOCK_TOKENS
        yield source("tail", key, num_tokens, home.of_tail(block_id, num_tokens))
    if state and kept.state is not None:
        key, slot = kept.state
        yield source("state", key, kept.num_kv, home.of_state(slot))
