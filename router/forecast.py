"""What would become of a request in a pool: when it starts, its first token, its pace, its end.

Pure, from a PoolView and its cost model. A fluid picture, not a replay:

    now ──wait──► place and memory ──prefill──► first token ──decode──► end
         what is ahead ends, one       in chunks beside      one step a token,
         after another                 what decodes          longer while prompts are computed

What is less urgent is not ahead: the engine displaces it (workers/engine/scheduler.py). What comes
later and is more urgent passes meanwhile: all takes longer by the part of the pool's time that went
to such lately (balance.py).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from router.balance import (
    balanced,
    blocks_of_one,
    budget_of,
    context_of_one,
    cost_of,
    passing,
    tightest,
)
from router.pools import PoolView, Wanted
from workers.cost import CostModel
from workers.sla import SlaTable

SMALLEST_CHUNK: Final = 16  # prefill tokens of a step; however tight the promises, a prompt moves
FEW: Final = 8  # running sequences: fewer do not say what requests are like
NOBODY: Final[Mapping[str, float]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Forecast:
    """Milliseconds from now.

    wait_ms  until it has its place and its memory
    ttft_ms  until its first token (of one that has output already: the next one)
    tpot_ms  per token after that
    end_ms   until its end, if its output is as long as others' were
    """

    wait_ms: float
    ttft_ms: float
    tpot_ms: float
    end_ms: float


@dataclass(frozen=True, slots=True)
class Crowd:
    """What a request finds in a pool.

    ahead     in the queue before it
    places    that are free for it and for those; negative: so many must end first
    blocks    likewise
    decodes   sequences that will decode beside it, at most
    context   positions that those read, all together
    chunk     prefill tokens of a step
    prompts   tokens of claimed prompts that are computed before its own
    """

    ahead: Sequence[Wanted]
    places: int
    blocks: float
    decodes: float
    context: float
    chunk: int
    prompts: float


def rank_of(wanted: Wanted, table: SlaTable) -> int:
    """Who is first: the smallest."""
    return table[wanted.sla].rank_ms(wanted.arrival_ms, wanted.deadline_ms)


def forecast(
    wanted: Wanted,
    pool: PoolView,
    table: SlaTable,
    *,
    warm: bool = False,
    displaces: bool = True,
    backlog: Mapping[str, float] = NOBODY,
) -> Forecast:
    """Of a request that came into this pool's queue now. The pool must report its cost.

    warm       what is kept of it lies in this pool's memory; else it is read from files
    displaces  less urgent work makes room
    backlog    requests of each class that are ahead of it beside those in the queue
    """
    crowd = crowd_of(wanted, pool, table, displaces)
    left = 1 - passing(wanted, pool, table)
    wait_ms = wait_of(wanted, pool, crowd, table)
    wait_ms += backlog_ms(wanted, pool, crowd, table, backlog)
    wait_ms /= left
    if not warm and wanted.kept_tokens:
        wait_ms = max(wait_ms, cost_of(pool).restore_ms(wanted.kept_tokens))
    ttft_ms = wait_ms + prefill_of(wanted, pool, crowd) / left
    tpot_ms = pace_of(wanted, pool, crowd, table)
    end_ms = ttft_ms + tpot_ms * (pool.output_of(wanted) - 1)
    return Forecast(wait_ms, ttft_ms, tpot_ms, end_ms)


def crowd_of(wanted: Wanted, pool: PoolView, table: SlaTable, displaces: bool) -> Crowd:
    """What is before this request, or beside it, in this pool."""
    rank, level = rank_of(wanted, table), table.urgency[table[wanted.sla].name]
    others = (other for other in pool.queue if other.request_id != wanted.request_id)
    ahead = [other for other in others if rank_of(other, table) <= rank]
    lower = 0
    if displaces:
        lower = sum(n for sla, n in pool.by_class.items() if table.urgency[table[sla].name] > level)
    lower = min(lower, pool.running)
    lower_blocks = lower * blocks_of_one(pool)
    wanted_blocks = pool.waiting_blocks + sum(other.blocks for other in ahead) + wanted.blocks
    staying = max(0, pool.running - lower)
    decodes: float = min(pool.places - 1, pool.running + len(ahead) + len(pool.coming))
    decodes = min(decodes, balanced(wanted, pool, table))
    each = context_of_one(wanted, pool)
    return Crowd(
        ahead=ahead,
        places=pool.places - staying - len(ahead) - 1,
        blocks=pool.free_blocks + lower_blocks - wanted_blocks if pool.total_blocks else 0.0,
        decodes=max(0, decodes),
        context=max(0, decodes) * each,
        chunk=chunk_of(wanted, pool, table, decodes, decodes * each),
        prompts=prompts_before(pool, table, level, staying),
    )


def chunk_of(
    wanted: Wanted, pool: PoolView, table: SlaTable, decodes: float, context: float
) -> int:
    """Prefill tokens of a step beside these decodes, as workers/engine/pace.py gives them room."""
    cost = cost_of(pool)
    base_ms = cost.step_ms(decodes, context)
    safe_ms = cost.safe_ms(tightest(wanted, pool, table)) if decodes else float("inf")
    room_ms = cost.prefill_room_ms(base_ms, safe_ms, budget_of(pool))
    within = cost.tokens_within(room_ms, wanted.prompt_tokens / 2, pool.step_tokens)
    return max(SMALLEST_CHUNK, within)


def prompts_before(pool: PoolView, table: SlaTable, level: int, staying: int) -> float:
    """Prompt tokens of claimed requests that are computed before those of a class.

    Of what the pool has not told the class of, its share of those that stay.
    """
    classes = pool.prefill_by_class.items()
    known = sum(count for sla, count in classes if table.urgency[table[sla].name] <= level)
    untold = max(0, pool.prefill_tokens - sum(pool.prefill_by_class.values()))
    return known + untold * staying / max(1, pool.running)


def between_ends_ms(wanted: Wanted, pool: PoolView, table: SlaTable) -> float:
    """ms from one end to the next while the pool is full of requests like this one."""
    return ends_ms(wanted, pool, crowd_of(wanted, pool, table, False), table)


def ends_ms(wanted: Wanted, pool: PoolView, crowd: Crowd, table: SlaTable) -> float:
    """ms from one end to the next while the pool is full of what is ahead."""
    cost, together = cost_of(pool), balanced(wanted, pool, table)
    like = crowd.ahead or [typical(wanted, pool)]
    output = sum(pool.output_of(other) for other in like) / len(like)
    prefill_ms = sum(compute_ms(other, cost) for other in like) / len(like)
    context = together * context_of_one(wanted, pool)
    return prefill_ms + output * cost.step_ms(together, context) / together


def typical(wanted: Wanted, pool: PoolView) -> Wanted:
    """A request as others are: as long as what runs in the pool, and as much of it new as here."""
    if pool.decoding < FEW:
        return wanted
    prompt = max(1, round(pool.context_tokens / pool.decoding))
    kept = round(prompt * wanted.kept_tokens / wanted.prompt_tokens)
    return replace(wanted, prompt_tokens=prompt, kept_tokens=kept, output_tokens=0)


def compute_ms(wanted: Wanted, cost: CostModel) -> float:
    """Its prefill alone, without the fixed part of the steps that carry it."""
    before = wanted.prompt_tokens + wanted.output_tokens - wanted.uncached / 2
    return wanted.uncached * cost.token_ms(max(0.0, before))


def wait_of(wanted: Wanted, pool: PoolView, crowd: Crowd, table: SlaTable) -> float:
    """Until enough of what is ahead has ended."""
    ends = max(0.0, -crowd.places)
    if crowd.blocks < 0:
        ends = max(ends, -crowd.blocks / blocks_of_one(pool))
    if not ends:
        return 0.0
    return ends * ends_ms(wanted, pool, crowd, table)


def backlog_ms(
    wanted: Wanted, pool: PoolView, crowd: Crowd, table: SlaTable, backlog: Mapping[str, float]
) -> float:
    """Until what waits outside of the queue, and is as urgent or more, has been served."""
    level = table.urgency[table[wanted.sla].name]
    count = sum(n for sla, n in backlog.items() if table.urgency[table[sla].name] <= level)
    return count * ends_ms(wanted, pool, crowd, table) if count else 0.0


def prefill_of(wanted: Wanted, pool: PoolView, crowd: Crowd) -> float:
    """From place and memory to the first token: prompts before its own, then its own."""
    cost = cost_of(pool)
    own = cost.prefill_ms_of(
        wanted.uncached, wanted.kept_tokens, crowd.chunk, crowd.decodes, crowd.context
    )
    before = crowd.prompts
    if crowd.places >= 0:  # else those ahead are computed while it waits
        before += sum(other.uncached for other in crowd.ahead)
    return own + cost.prefill_ms_of(before, 0, crowd.chunk, crowd.decodes, crowd.context)


def pace_of(wanted: Wanted, pool: PoolView, crowd: Crowd, table: SlaTable) -> float:
    """ms per token: a step of those beside it, and its share of their prompts' time."""
    cost = cost_of(pool)
    length = wanted.prompt_tokens + wanted.output_tokens + pool.output_of(wanted) / 2
    step_ms = cost.step_ms(crowd.decodes + 1, crowd.context + length)
    prompts = crowd.prompts + sum(other.uncached for other in crowd.ahead)
    prompts_ms = prompts * cost.token_ms(wanted.prompt_tokens / 2)
    return step_ms + min(prompts_ms / pool.output_of(wanted), step_ms)


def empty_ttft_ms(wanted: Wanted, pool: PoolView) -> float:
    """The first token if the pool had nothing else to do: no plan is faster."""
    cost, kept = cost_of(pool), wanted.kept_tokens
    return cost.prefill_ms_of(wanted.uncached, kept, pool.step_tokens)
