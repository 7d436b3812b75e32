"""The arrays of one step, built in bulk: never a NumPy call per token, and few per sequence.

    scheduled   [ a: decode ][ b: decode ][ c: chunk of 5 ]
    token_ids     a            b            c c c c c          (T,)  neighbours, ascending
    seq_index     0            1            2 2 2 2 2          row of block_tables
    logit_rows    0            1                    6          c's only if it reaches its newest

A sequence with every_logit set wants the logits of all its tokens.
"""

from collections.abc import Sequence as Items
from dataclasses import dataclass

import numpy as np

from kernels.ops import BLOCK_TOKENS, I32, Step
from workers.engine.chunks import Scheduled
from workers.engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Batch:
    """A step, and which rows of its logits are whose.

    sampled   sequences that get a next token, with the row of their logits
    watched   sequences with every_logit: (sequence, position of its first row, first row, end row)
    """

    step: Step
    sampled: list[tuple[Sequence, int]]
    watched: list[tuple[Sequence, int, int, int]]


def build_batch(scheduled: Items[Scheduled]) -> Batch:
    """Arrays for these sequences, in this order."""
    token_ids: list[int] = []
    positions: list[int] = []
    seq_index: list[int] = []
    logit_rows: list[int] = []
    sampled: list[tuple[Sequence, int]] = []
    watched: list[tuple[Sequence, int, int, int]] = []
    for index, part in enumerate(scheduled):
        sequence, begin, end = part.sequence, part.sequence.num_cached, part.end
        token_ids += sequence.token_ids[begin:end]
        positions += range(begin, end)
        seq_index += [index] * (end - begin)
        if sequence.every_logit:
            first_row = len(logit_rows)
            logit_rows += range(len(token_ids) - (end - begin), len(token_ids))
            watched.append((sequence, begin, first_row, len(logit_rows)))
        elif part.reaches_end:
            logit_rows.append(len(token_ids) - 1)
        if part.reaches_end:
            sampled.append((sequence, len(logit_rows) - 1))
    step = _arrays(scheduled, token_ids, positions, seq_index, logit_rows)
    return Batch(step, sampled, watched)


def _arrays(
    scheduled: Items[Scheduled],
    token_ids: list[int],
    positions: list[int],
    seq_index: list[int],
    logit_rows: list[int],
) -> Step:
    tables = block_tables(scheduled)
    # one conversion for the three: (3, T) int32, its rows are contiguous
    rows = np.array([token_ids, positions, seq_index], np.int32)
    place = rows[1].astype(np.int64)
    slots = tables[rows[2], place // BLOCK_TOKENS] * np.int64(BLOCK_TOKENS) + place % BLOCK_TOKENS
    wanted = np.array(logit_rows, np.int32)
    held = [part.sequence.state_slot for part in scheduled]
    state_slots = np.array([slot for slot in held if slot is not None], np.int32)
    return Step(rows[0], rows[1], rows[2], slots, tables, wanted, state_slots)


def block_tables(scheduled: Items[Scheduled]) -> I32:
    """(S, max_blocks) int32, padded with 0."""
    widest = max(len(part.sequence.block_row) for part in scheduled)
    tables = np.zeros((len(scheduled), widest), np.int32)
    for index, part in enumerate(scheduled):
        tables[index, : len(part.sequence.block_row)] = part.sequence.block_row
    return tables
