"""Runs a model without an engine: sequences, cut into steps as a test wishes."""

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from kernels.arrays import HOST, Array, Arrays
from kernels.ops import BLOCK_TOKENS, F32, KvArena, StateArena, Step, kv_shape
from workers.model.build import Model
from workers.model.config import ModelConfig

Part = tuple[int, int]  # (sequence, number of its next tokens)


def kv_arena(config: ModelConfig, num_blocks: int, arrays: Arrays = HOST) -> KvArena:
    """NaN everywhere: what was never written must never be read."""
    shape = kv_shape(num_blocks, config.num_kv_layers, config.num_kv_heads, config.head_dim)
    return KvArena(_nowhere_written(arrays, shape, np.float16))


def state_arena(config: ModelConfig, num_slots: int, arrays: Arrays = HOST) -> StateArena | None:
    """NaN everywhere: a sequence starts from zeros without reading its slot."""
    shape = config.state
    if shape is None:
        return None
    conv, delta = (
        _nowhere_written(arrays, shape_of(num_slots), np.float32)
        for shape_of in (shape.conv, shape.delta)
    )
    return StateArena(conv, delta)


def _nowhere_written(arrays: Arrays, shape: Sequence[int], value: type) -> Array:
    room = arrays.reserve(shape, value)
    arrays.write(room, np.full(shape, np.nan, value))
    return room


def run(
    model: Model,
    sequences: Sequence[Sequence[int]],
    steps: Sequence[Sequence[Part]],
    state: StateArena | None = None,
    arrays: Arrays = HOST,
) -> list[F32]:
    """Logits (T, V) of every position of each sequence.

    arrays  where the ops want KV and state
    steps  each step's parts, one per sequence at most; a sequence's parts add up to its length
    state  sequence i keeps its own in slot i; absent: an arena of this run's own
    """
    config = model.config
    num_blocks = max(-(-len(ids) // BLOCK_TOKENS) for ids in sequences)
    tables = np.arange(len(sequences) * num_blocks, dtype=np.int32).reshape(-1, num_blocks)[:, ::-1]
    kv = kv_arena(config, tables.size, arrays)
    state = state or state_arena(config, len(sequences), arrays)
    done = [0] * len(sequences)
    logits: list[list[F32]] = [[] for _ in sequences]
    for parts in steps:
        got = model.forward(_step(sequences, tables, done, parts), kv, state, lambda: None)
        ends = list(accumulate(count for _, count in parts))
        for (sequence, count), end in zip(parts, ends, strict=True):
            logits[sequence].append(arrays.read(got[end - count : end]).copy())
            done[sequence] += count
    return [np.concatenate(rows) for rows in logits]


def _step(sequences, tables, done, parts: Sequence[Part]) -> Step:
    """All tokens of the step, each wanting logits."""
    seqs = np.array([s for s, count in parts for _ in range(count)], np.int32)
    positions = np.concatenate([np.arange(done[s], done[s] + n) for s, n in parts]).astype(np.int32)
    blocks = tables[seqs, positions // BLOCK_TOKENS].astype(np.int64)
    return Step(
        token_ids=np.array(
            [sequences[s][p] for s, p in zip(seqs, positions, strict=True)], np.int32
        ),
        positions=positions,
        seq_index=np.array([i for i, (_, n) in enumerate(parts) for _ in range(n)], np.int32),
        slot_mapping=blocks * BLOCK_TOKENS + positions % BLOCK_TOKENS,
        block_tables=np.ascontiguousarray(tables[[s for s, _ in parts]]),
        logit_rows=np.arange(len(seqs), dtype=np.int32),
        state_slots=np.array([s for s, _ in parts], np.int32),
    )


def alone(num_tokens: int, *chunks: int) -> list[list[Part]]:
    """Steps of the one sequence 0: the chunks, then what is left."""
    rest = num_tokens - sum(chunks)
    return [[(0, n)] for n in (*chunks, rest) if n]
