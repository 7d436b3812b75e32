"""How a request ends, as the engine sees it, and the event that says so.

status     finish_reason  code             when
finished   stop                            an end token, or a stop string
finished   length                          max_tokens, or the model's context is full
cancelled                 cancelled        cancel() was called
expired                   expired          deadline_ms is past
failed                    too_large        prompt + max_tokens never fit the KV, or the context
failed                    grammar_error    its grammar allows no token, or takes too long
failed                    numeric_error    a logit of its row is not finite
failed                    bad_request      no tokens, or ids outside the vocabulary
"""

from dataclasses import dataclass
from typing import Final

from workers.engine.digest import link_text
from workers.engine.sequence import Sequence
from workers.wire import EndEvent


@dataclass(frozen=True, slots=True)
class Ending:
    """Why a sequence ends; the fields are those of EndEvent."""

    status: str
    finish_reason: str | None = None
    code: str | None = None
    error: str | None = None


CANCELLED: Final = Ending("cancelled", None, "cancelled", "the request was cancelled")
EXPIRED: Final = Ending("expired", None, "expired", "its deadline passed")
NUMERIC_ERROR: Final = Ending(
    "failed", None, "numeric_error", "the model gave logits that are not finite numbers"
)


def no_token(sequence: Sequence) -> Ending:
    """For one that got no token: its grammar allows none, or its logits are no numbers."""
    if sequence.mask is None or not sequence.mask.error:
        return NUMERIC_ERROR
    error = f"its grammar cannot be followed any further: {sequence.mask.error}"
    return Ending("failed", None, "grammar_error", error)


def finished(reason: str) -> Ending:
    """reason: "stop" or "length"."""
    return Ending("finished", reason)


def too_large(sequence: Sequence, num_blocks: int) -> Ending:
    """For a sequence that can never run with num_blocks in all."""
    if sequence.max_length <= sequence.num_prompt:
        error = f"the prompt's {sequence.num_prompt} tokens leave no room in the model's context"
    else:
        wanted = sequence.num_blocks_wanted
        error = f"prompt + max_tokens need {wanted} KV blocks, this pool has {num_blocks} in all"
    return Ending("failed", None, "too_large", error)


def bad_tokens(sequence: Sequence, vocab_size: int) -> Ending | None:
    """For a sequence whose ids the model cannot look up; None when all is well."""
    ids = sequence.token_ids
    if sequence.num_prompt == 0:
        return Ending("failed", None, "bad_request", "token_ids is empty")
    if min(ids) < 0 or max(ids) >= vocab_size:
        error = f"token_ids holds an id outside [0, {vocab_size})"
        return Ending("failed", None, "bad_request", error)
    return None


def end_event(sequence: Sequence, ending: Ending) -> EndEvent:
    """The last event of a sequence. Made once: it takes the text that was held back."""
    times = sequence.times
    return EndEvent(
        status=ending.status,
        finish_reason=ending.finish_reason,
        text="" if sequence.text is None else sequence.text.flush(),
        error=ending.error,
        code=ending.code,
        digest=link_text(sequence.link) if sequence.num_output else "",
        usage=sequence.usage,
        ttft_ms=times.ttft_ms,
        tpot_ms=times.tpot_ms,
        queue_ms=times.queue_ms,
    )
