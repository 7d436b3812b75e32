"""The next token of each sequence, as a pure function of its logits, its parameters and its
position.

Per row: biases, penalties (repetition over prompt and output, then presence and frequency over
output), the mask of its grammar, temperature, top-k, top-p, min-p, draw. Greedy (temperature 0) is
the largest logit; where the largest of all is allowed, nothing else is looked at. Meanings are
OpenAI's and vLLM's. exp and log are the ops' own; sums, sorts and cuts are those of shares.py (law
one).
"""

from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Final

import numpy as np

from kernels.arrays import HOST, Arrays
from kernels.ops import F32, I32, I64, Ops
from workers.engine.philox import uniform
from workers.engine.sequence import Sequence
from workers.engine.shares import descending, min_p, pick, top_k, top_p, total_of
from workers.wire import SamplingParams

EXP_FLOOR: Final = np.float32(-80.0)  # scores below it weigh nothing; exp(-80) is 1.8e-35


@dataclass(frozen=True, slots=True)
class Draw:
    """A chosen token.

    logprobs  [(id, log probability), ...], the chosen one, then the n best; None: not asked for
    """

    token_id: int
    logprobs: list[tuple[int, float]] | None


class Sampler:
    """Keeps what never changes: the ops, and the ids that are never chosen.

    arrays  where logits lie; of a row that is not plainly greedy all values come here
    """

    def __init__(self, ops: Ops, hidden_ids: frozenset[int], arrays: Arrays = HOST) -> None:
        self._ops = ops
        self._arrays = arrays
        self._hidden_set = hidden_ids
        self._hidden: I64 = np.array(sorted(hidden_ids), np.int64)

    def sample(self, sampled: Items[tuple[Sequence, int]], logits: F32) -> list[Draw | None]:
        """One draw for each (sequence, row of logits); None where the row is not finite, or where
        its grammar allows nothing (sequence.mask.error says why)."""
        best: I32 = np.empty(logits.shape[0], np.int32)
        self._ops.logits_argmax(best, logits)
        best_ids: list[int] = best.tolist()
        draws: list[Draw | None] = []
        for sequence, row in sampled:
            draws.append(self._sample_row(sequence, logits[row], best_ids[row]))
        return draws

    def _sample_row(self, sequence: Sequence, row: F32, best_id: int) -> Draw | None:
        if best_id < 0:
            return None
        params = sequence.request.params
        is_plain = params.temperature == 0 and not changes_logits(params)
        is_best = is_plain and best_id not in self._hidden_set
        if is_best and sequence.mask is not None:
            is_best = sequence.mask.takes(best_id)
        if is_best and params.logprobs is None:
            return Draw(best_id, None)
        values: F32 = self._arrays.read(row)
        token_id = best_id if is_best else self._choose(sequence, params, values)
        if sequence.mask is not None and sequence.mask.error:
            return None
        if params.logprobs is None:
            return Draw(token_id, None)
        return Draw(token_id, self._logprobs(values, token_id, params.logprobs))

    def _choose(self, sequence: Sequence, params: SamplingParams, row: F32) -> int:
        scores = row.copy()
        if changes_logits(params):
            penalise(scores, sequence, params)
        scores[self._hidden] = -np.inf
        if sequence.mask is not None:
            scores[~sequence.mask.allowed()] = -np.inf
        if np.float32(params.temperature) == 0:  # also one that is too small to divide by
            return int(np.argmax(scores))  # the first of the largest
        scores -= scores.max()
        scores /= np.float32(params.temperature)
        number = uniform(params.seed, params.choice, len(sequence.token_ids))
        return self._draw(scores, params, number)

    def _draw(self, scores: F32, params: SamplingParams, number: float) -> int:
        """number in [0, 1) picks a survivor of the cuts by its share."""
        ids: I64 | None = None
        if 0 < params.top_k < len(scores):
            ids = top_k(scores, params.top_k)
            scores = scores[ids]
        weights = self._weights(scores)
        if params.top_p < 1:
            kept = top_p(scores, weights, params.top_p)
            ids, weights = kept if ids is None else ids[kept], weights[kept]
        if params.min_p > 0:
            kept = min_p(weights, params.min_p)
            ids, weights = kept if ids is None else ids[kept], weights[kept]
        index = pick(weights, number)
        return index if ids is None else int(ids[index])

    def _weights(self, scores: F32) -> F32:
        """exp of each score, 0 for those below the floor."""
        weights = np.empty_like(scores)
        self._ops.exp(weights, scores)
        weights[scores < EXP_FLOOR] = 0
        return weights

    def _logprobs(self, row: F32, token_id: int, count: int) -> list[tuple[int, float]]:
        """Log softmax of the raw logits: before penalties, temperature and cuts."""
        scores = row - row.max()
        total: F32 = np.array([total_of(self._weights(scores))], np.float32)
        self._ops.log(total, total)
        ids = [token_id]
        if count:
            ids += descending(scores, top_k(scores, min(count, len(scores)))).tolist()
        values: list[float] = (scores[ids] - total[0]).tolist()
        return list(zip(ids, values, strict=True))


def changes_logits(params: SamplingParams) -> bool:
    """Whether a penalty or a bias does."""
    return (
        bool(params.logit_bias)
        or params.repetition_penalty != 1
        or params.presence_penalty != 0
        or params.frequency_penalty != 0
    )


def penalise(scores: F32, sequence: Sequence, params: SamplingParams) -> None:
    """Change scores in place: biases are added, then repetition divides positive logits and
    multiplies others, once an id, then presence and frequency are taken off.
    """
    for token_id, bias in params.logit_bias:
        scores[token_id] += np.float32(bias)
    if params.repetition_penalty != 1:
        seen = np.unique(np.array(sequence.token_ids, np.int64))
        values, penalty = scores[seen], np.float32(params.repetition_penalty)
        scores[seen] = np.where(values > 0, values / penalty, values * penalty)
    counts = sequence.output_counts
    if counts and (params.presence_penalty != 0 or params.frequency_penalty != 0):
        ids = np.fromiter(counts.keys(), np.int64, len(counts))
        times = np.fromiter(counts.values(), np.float32, len(counts))
        frequency, presence = np.float32(params.frequency_penalty), params.presence_penalty
        scores[ids] -= times * frequency + np.float32(presence)
