"""What a request takes of a pool, and how much of the pool is taken: in whole-pool milliseconds.

A pool has two things to give: the time of its steps, and its places and memory. A request takes
time (its prompt, its share of each step) and it stays: for as long as it is there, its place and
its blocks are nobody else's. Its burden is the larger of the two, so burdens of one pool add up:
a pool that is given a second's burden a second is full.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from router.balance import cost_of, pace_promised
from router.forecast import rank_of
from router.pools import PoolView, Wanted
from workers.sla import SlaTable

QUEUED_MS: Final = 2_000.0  # a queue holds so much work that is not begun, so a pool never runs dry
QUEUED_LEAST: Final = 2
PROMPTS_MS: Final = 5_000.0  # with more prompts to compute, a pool is given no further one
PACE_SAFE: Final = 0.65  # of a promised pace: so much of it a pool is filled up to
QUEUED_MOST: Final = 2  # times places, of a pool that does not report its cost


@dataclass(frozen=True, slots=True)
class Phases:
    """Which phases of a request a pool computes."""

    prefill: bool
    decode: bool


WHOLE: Final = Phases(True, True)
PREFILL: Final = Phases(True, False)
DECODE: Final = Phases(False, True)


def burden_ms(wanted: Wanted, pool: PoolView, phases: Phases = WHOLE) -> float:
    """What it takes of this pool."""
    cost, output = cost_of(pool), pool.output_of(wanted)
    busy = max(1.0, min(pool.places, pool.decoding + 1))
    length = wanted.prompt_tokens + wanted.output_tokens + output / 2
    each = pool.context_tokens / pool.decoding if pool.decoding else length
    step_ms = cost.step_ms(busy, (busy - 1) * each + length)
    compute_ms = stay_ms = 0.0
    if phases.prefill:
        before = max(0.0, wanted.prompt_tokens + wanted.output_tokens - wanted.uncached / 2)
        prefill_ms = wanted.uncached * cost.token_ms(before)
        compute_ms += prefill_ms
        stay_ms += prefill_ms + step_ms
    else:
        stay_ms += cost.restore_ms(wanted.prompt_tokens)
    if not phases.decode:
        stay_ms += cost.write_ms(wanted.prompt_tokens)
    else:
        compute_ms += output * (cost.decode_ms + cost.context_us * length / 1e6)
        stay_ms += output * step_ms
    return max(compute_ms, stay_ms * share_of(wanted, pool))


def share_of(wanted: Wanted, pool: PoolView) -> float:
    """The part of the pool's places, or of its memory, that is its own while it is there."""
    places = 1 / max(1, pool.places)
    return max(places, wanted.blocks / pool.total_blocks) if pool.total_blocks else places


def pressure(wanted: Wanted, pool: PoolView, table: SlaTable) -> float:
    """How full the pool would be with it: 1 is full, of places, memory or promised pace."""
    cost = cost_of(pool)
    many = pool.running + len(pool.queue) + len(pool.coming) + 1
    taken = many / max(1, pool.places)
    if pool.total_blocks:
        blocks = pool.total_blocks - pool.free_blocks + pool.waiting_blocks + wanted.blocks
        blocks += sum(other.blocks for other in (*pool.queue, *pool.coming))
        taken = max(taken, blocks / pool.total_blocks)
    promised = min(pace_promised(sla.name, table) for sla in table)
    each = pool.context_tokens / pool.decoding if pool.decoding else wanted.prompt_tokens
    decodes = min(many, pool.places)
    pace = cost.step_ms(decodes, decodes * each) / promised
    prompts = pool.prefill_tokens + sum(other.uncached for other in pool.queue)
    soonest = min((sla.ttft_ms for sla in table if sla.ttft_ms), default=None)
    if soonest is not None:
        pace = max(pace, prompts * cost.token_ms(wanted.prompt_tokens / 2) / soonest)
    return max(taken, pace)


def keeps_pace(wanted: Wanted, pool: PoolView, table: SlaTable) -> bool:
    """Whether those that run there still get their promised pace when it joins them."""
    if not pool.running:
        return True
    cost = cost_of(pool)
    decodes = min(pool.places, pool.decoding + len(pool.queue) + len(pool.coming) + 1)
    each = pool.context_tokens / pool.decoding if pool.decoding else wanted.prompt_tokens
    context = (decodes - 1) * each + wanted.prompt_tokens
    step_ms = cost.step_ms(decodes, context)
    classes = (*pool.by_class, wanted.sla)
    promised = min(pace_promised(sla, table) for sla in classes)
    return step_ms <= PACE_SAFE * promised


def has_room(wanted: Wanted, pool: PoolView, table: SlaTable, *, displaces: bool = True) -> bool:
    """Whether it may go into the pool's queue now; else it waits where any pool can take it.

    What is less urgent is not counted: it makes room, or is passed in the queue.
    """
    if places_for(wanted.sla, pool, table, displaces=displaces) <= 0:
        return False
    queue = before(wanted.sla, pool, table)
    if not table.urgency[table[wanted.sla].name]:
        return True  # the most urgent are best ordered by the engine, which displaces for them
    if prompts_ms(wanted, pool, queue) > PROMPTS_MS:
        return False
    if not pool.total_blocks:
        return True
    # only what came before: small ones that passed a large one must not keep it out for ever
    ahead = [other for other in queue if rank_of(other, table) <= rank_of(wanted, table)]
    unmet = pool.waiting_blocks + sum(other.blocks for other in ahead)
    return not unmet or unmet + wanted.blocks <= pool.free_blocks


def prompts_ms(wanted: Wanted, pool: PoolView, queue: Sequence[Wanted]) -> float:
    """What the pool has still to compute of prompts; 0.0 where it does not report its cost."""
    if pool.cost is None:
        return 0.0
    tokens = pool.prefill_tokens + sum(other.uncached for other in queue)
    return tokens * pool.cost.token_ms(wanted.prompt_tokens / 2)


def places_for(sla: str, pool: PoolView, table: SlaTable, *, displaces: bool = True) -> int:
    """Requests of this class that may still go into the pool's queue: its free places, and more.

    A pool that does not report its cost: as many as its queue holds.
    """
    if not pool.is_ready:
        return 0
    queued = len(before(sla, pool, table))
    if pool.cost is None:
        return QUEUED_MOST * pool.places - queued
    staying = pool.running - (lower_of(sla, pool, table) if displaces else 0)
    return pool.places + queue_places(pool) - max(0, staying) - queued - len(pool.coming)


def before(sla: str, pool: PoolView, table: SlaTable) -> list[Wanted]:
    """What waits in the queue and is as urgent, or more."""
    level = table.urgency[table[sla].name]
    return [other for other in pool.queue if table.urgency[table[other.sla].name] <= level]


def lower_of(sla: str, pool: PoolView, table: SlaTable) -> int:
    """How many of those that the pool has claimed are less urgent."""
    level = table.urgency[table[sla].name]
    lower = sum(n for name, n in pool.by_class.items() if table.urgency[table[name].name] > level)
    return min(lower, pool.running)


def queue_places(pool: PoolView) -> int:
    """Requests that may wait in its queue beyond its free places."""
    assert pool.cost is not None
    most = pool.places
    output = sum(pool.output_tokens.values()) / len(pool.output_tokens) if pool.output_tokens else 0
    if not output:
        return most
    decodes = max(1, min(pool.places, pool.decoding))
    end_ms = output * pool.cost.step_ms(decodes, pool.context_tokens) / decodes
    return int(min(most, max(QUEUED_LEAST, QUEUED_MS / max(end_ms, 0.001))))
