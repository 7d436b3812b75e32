"""`timings`: where the time of an answer went, in every answer of every API, in llama.cpp's names.

    arrival ──queue_ms──► first step ──prompt_ms──► first token ──predicted_ms──► last token

What its last owner did not see itself is null: of a request that was moved or taken over, the times
before that (workers/engine/metrics.py).
"""

from typing import Any

from workers.wire import EndEvent


def timings_of(end: EndEvent) -> dict[str, Any]:
    """The times of a request that has ended, ms, with what was computed in them.

    prompt_n     tokens of the prompt; cached_n: of those, the ones that nobody computed for it
    predicted_n  tokens of the answer
    pool, reason   who ended it, and why it ran there
    """
    usage = end.usage
    predicted_n = usage.output_tokens if usage else 0
    return {
        "queue_ms": end.queue_ms,
        "prompt_ms": prompt_ms(end),
        "predicted_ms": predicted_ms(end, predicted_n),
        "prompt_n": usage.prompt_tokens if usage else 0,
        "predicted_n": predicted_n,
        "cached_n": usage.cached_tokens if usage else 0,
        "pool": end.pool,
        "reason": end.reason,
    }


def prompt_ms(end: EndEvent) -> float | None:
    """From the first step to the first token."""
    if end.ttft_ms is None or end.queue_ms is None:
        return None
    return max(0.0, end.ttft_ms - end.queue_ms)


def predicted_ms(end: EndEvent, predicted_n: int) -> float | None:
    """From the first token to the last; 0 of one token."""
    if end.tpot_ms is None:
        return 0.0 if predicted_n == 1 and end.ttft_ms is not None else None
    return round(end.tpot_ms * (predicted_n - 1), 3)  # tpot_ms has three decimals itself
