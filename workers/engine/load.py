"""What an engine says of itself: how much runs and waits, how fast, and what its steps cost."""

from collections import Counter
from dataclasses import dataclass, field

from workers.cost import CostModel
from workers.engine.metrics import Meter
from workers.engine.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """What an engine says of itself; tokens_per_s counts output tokens of the last ten seconds.

    decoding        of the running ones, those whose prompt is computed
    context_tokens  positions that these read in a step
    prefill_by_class  prompt tokens that are not computed yet, of all that are here
    waiting_blocks  KV blocks that those want which wait without memory
    step_tokens     of one step at most
    budget_ms       of one step, about
    prefilled       prompt tokens that it has computed in all, by class
    is_short        whoever is first waits for memory, not for a place
    step_ms, batch  mean duration of a step lately; sequences of the last one
    histograms      of times and sizes (workers/histograms.py)
    """

    running: int
    waiting: int
    free_blocks: int
    total_blocks: int
    tokens_per_s: float
    kv: dict[str, float] = field(default_factory=dict)
    cost: CostModel | None = None
    decoding: int = 0
    context_tokens: int = 0
    prefill_by_class: dict[str, int] = field(default_factory=dict)
    waiting_blocks: int = 0
    step_tokens: int = 0
    budget_ms: int = 0
    prefilled: dict[str, int] = field(default_factory=dict)
    is_short: bool = False
    step_ms: float = 0.0
    batch: int = 0
    histograms: dict[str, list[float]] = field(default_factory=dict)


def load_of(
    scheduler: Scheduler, tokens_per_s: float, kv: dict[str, float], meter: Meter
) -> EngineLoad:
    """kv: what the memory counts."""
    pool = scheduler.memory.pool
    decoding = [s for s in scheduler.running if s.num_uncached == 1]
    here = [s for s in scheduler.waiting if s not in scheduler.suspended] + scheduler.running
    prefill: Counter[str] = Counter()
    for sequence in here:
        if sequence.num_uncached > 1:
            prefill[sequence.sla.name] += sequence.num_uncached
    return EngineLoad(
        running=len(scheduler.running),
        waiting=scheduler.num_waiting,
        free_blocks=pool.num_free,
        total_blocks=pool.num_blocks,
        tokens_per_s=tokens_per_s,
        kv=kv,
        cost=scheduler.cost.model() if scheduler.cost.is_known else None,
        decoding=len(decoding),
        context_tokens=sum([s.num_cached for s in decoding]),
        prefill_by_class=dict(prefill),
        waiting_blocks=sum([s.num_blocks_wanted for s in scheduler.waiting if not s.blocks]),
        step_tokens=scheduler.max_step_tokens,
        budget_ms=scheduler.budget_ms,
        prefilled=dict(scheduler.prefilled),
        is_short=scheduler.short is not None,
        step_ms=meter.step_ms,
        batch=meter.batch,
        histograms=meter.told(),
    )
