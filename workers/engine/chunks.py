"""The parts of a step: who computes which tokens, and how the room for prefill is shared out."""

from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Final

from workers.cost import CostModel
from workers.engine.cost import Work
from workers.engine.sequence import Sequence

SMALLEST_CHUNK: Final = 16  # tokens; however tight the limit, a prefill moves
UNLIMITED_MS: Final = 1e12
FIRST_CHUNK: Final = 64  # tokens, while nothing is known of what steps cost


@dataclass(frozen=True, slots=True)
class Scheduled:
    """Tokens [sequence.num_cached, end) of one sequence are computed in this step."""

    sequence: Sequence
    end: int

    @property
    def num_tokens(self) -> int:
        return self.end - self.sequence.num_cached

    @property
    def reaches_end(self) -> bool:
        """The step computes the newest token, so its logits give the next one."""
        return self.end == len(self.sequence.token_ids)


def work_of(scheduled: Items[Scheduled]) -> Work:
    """What a step computes, before it is computed."""
    decodes = context = prefill = pairs = 0
    for part in scheduled:
        num_tokens, before = part.num_tokens, part.sequence.num_cached
        if num_tokens == 1 and part.reaches_end:
            decodes += 1
            context += before
        else:
            prefill += num_tokens
            pairs += num_tokens * before + num_tokens * num_tokens // 2
    return Work(decodes, context, prefill, pairs / prefill if prefill else 0.0)


def prefill_of(
    prompts: list[Sequence], model: CostModel, room: int, room_ms: float
) -> list[Scheduled]:
    """Chunks of these prompts, the most urgent first, together at most `room` tokens that take
    room_ms; but SMALLEST_CHUNK tokens anyhow. A guarded one goes first and leaves half to others.

    prompts: in order of rank
    """
    prompts = sorted(prompts, key=lambda s: s.guarded_until == 0)
    chunks: list[Scheduled] = []
    least = min(room, SMALLEST_CHUNK)
    for sequence in prompts:
        if room <= 0:
            break
        share = 2 if sequence.guarded_until > 0 and len(prompts) > 1 else 1
        longest = min(-(-room // share), sequence.num_uncached, tokens_to_cut(sequence))
        fits = model.tokens_within(room_ms / share, sequence.num_cached, longest)
        num_tokens = max(fits, min(least, longest))
        if num_tokens > 0:
            chunks.append(Scheduled(sequence, sequence.num_cached + num_tokens))
        room -= num_tokens
        least -= num_tokens
        room_ms -= num_tokens * model.token_ms(sequence.num_cached)
    return chunks


def tokens_to_cut(sequence: Sequence) -> int:
    """How far a chunk may go: to the next position at which its state is to be kept."""
    begin, end = sequence.num_cached, len(sequence.token_ids)
    if sequence.reuse is not None:
        for cut in sequence.reuse.cuts:
            if begin < cut < end:
                end = cut
    return end - begin
