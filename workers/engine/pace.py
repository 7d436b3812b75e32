"""How much one step takes on, so that whoever runs keeps the pace that its class promises.

    |  fixed  | urgent decodes | others while they fit |  prefill: what is left of the limit  |
    0                                                                                     limit

The limit is the tightest promise per token (tpot_ms) among the decodes of the step, and never more
than the engine's own budget for a step. What cannot be kept is not chased: where the decodes alone
take longer than promised, prefill adds half of their time, and the promise is broken by half rather
than somebody's prompt for ever. Decodes of less urgent classes that do not fit sit out a step, and
are due again by their own promise.

All functions are pure; `model` says what steps cost (workers/cost.py).
"""

from typing import Final

from workers.cost import CostModel
from workers.engine.sequence import Sequence

BACKGROUND_MS: Final = 2_000  # who was promised no pace sits out no longer than this


def decodes_of(
    ready: list[Sequence], model: CostModel, now_ms: int
) -> tuple[list[Sequence], float]:
    """Who of the sequences that are ready to decode does, and the ms that the step takes so far.

    ready: in order of rank
    """
    if not ready:
        return [], model.step_ms(0)
    first = ready[0].level
    context = sum([s.num_cached for s in ready])
    if ready[-1].level == first:
        return ready, model.step_ms(len(ready), context)
    chosen = [s for s in ready if s.level == first]
    others = [s for s in ready if s.level != first]
    base_ms = model.step_ms(len(chosen), sum([s.num_cached for s in chosen]))
    promise = tightest(chosen, model)
    limit_ms = promise if base_ms < promise else 1.5 * base_ms
    if model.step_ms(len(ready), context) <= limit_ms:
        return ready, model.step_ms(len(ready), context)
    base_ms = _add_others(chosen, others, model, now_ms, base_ms, limit_ms)
    return chosen, base_ms


def _add_others(
    chosen: list[Sequence],
    others: list[Sequence],
    model: CostModel,
    now_ms: int,
    base_ms: float,
    limit_ms: float,
) -> float:
    """Those that fit, who sat out longest first within a class; and some that are due anyhow."""
    others = sorted(others, key=lambda s: (s.level, s.served_ms or 0, s.rank))
    num_due = 1 + int(len(others) * limit_ms / BACKGROUND_MS)  # not all of them in one step
    for sequence in others:
        more_ms = model.decode_ms + model.context_us * sequence.num_cached / 1e6
        if base_ms + more_ms > limit_ms:
            if num_due == 0 or not is_due(sequence, now_ms + base_ms):
                continue
            num_due -= 1
        chosen.append(sequence)
        base_ms += more_ms
    return base_ms


def is_due(sequence: Sequence, end_ms: float) -> bool:
    """Whether it has sat out as long as it may, when the step ends then."""
    pace_ms = sequence.sla.tpot_ms or BACKGROUND_MS
    return sequence.served_ms is None or end_ms - sequence.served_ms >= pace_ms


def tightest(sequences: list[Sequence], model: CostModel) -> float:
    """The smallest promise per token among them, ms, less what steps differ from the model."""
    promises = [s.sla.tpot_ms for s in sequences if s.sla.tpot_ms is not None]
    return model.safe_ms(min(promises, default=1e12))


def prefill_room_ms(
    decodes: list[Sequence], model: CostModel, base_ms: float, budget_ms: int
) -> float:
    """Milliseconds of prefill beside these decodes, which take base_ms."""
    return model.prefill_room_ms(base_ms, tightest(decodes, model), budget_ms)
