"""Files of sessions that another node deleted go from this one as well, asked for or not."""

from typing import Final

from kv_tier.tier import KvTier
from workers.session.recall import is_void
from workers.store import Store
from workers.wire import full_id

BATCH: Final = 500  # sessions that are asked for at once


def drop_void(store: Store, tier: KvTier) -> int:
    """How many went.   Raises RedisError, DiskFull, DiskError, NewerVersion."""
    names = sorted(tier.ledger.marks())
    dropped = 0
    for begin in range(0, len(names), BATCH):
        batch = names[begin : begin + BATCH]
        with store.redis.pipeline(transaction=False) as pipeline:
            for tenant, session_id in batch:
                pipeline.hget(store.keys.session(full_id(tenant, session_id)), "dropped")
            fences = pipeline.execute(raise_on_error=False)
        for (tenant, session_id), fence in zip(batch, fences, strict=True):
            if isinstance(fence, bytes) and fence.isdigit():
                dropped += _drop(tier, tenant, session_id, int(fence))
    return dropped


def _drop(tier: KvTier, tenant: str, session_id: str, fence: int) -> bool:
    head = tier.sessions.head(tenant, session_id)
    if head is None or not is_void(head, {"dropped": fence}):
        return False
    tier.drop(tenant, session_id)
    return True
