"""Rows of bench_kernels.py for the ops of linear layers, at the shape of Qwen3.5-27B.

48 heads of v and 16 of k, 128 wide; 10,240 channels. The layers and slots of an arena of half a
gigabyte are taken in turn, so that states come from memory as they do in a model's step.
"""

from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np

from kernels.cpu.host import CpuOps
from kernels.ops import F32, StateArena, Step, conv_shape, delta_shape

SLOTS, LAYERS, HEADS, KEY_HEADS, DIM, CHANNELS, TAPS = 10, 16, 48, 16, 128, 10240, 4
DELTA_BYTES = HEADS * DIM * DIM * 4
CASES = ((1, 1), (4, 1), (10, 1), (1, 16), (1, 256))  # sessions, tokens of each


def step_of(sessions: int, tokens: int, first_slot: int) -> Step:
    """Some tokens of some sessions, none of them their first."""
    positions = np.tile(np.arange(5, 5 + tokens, dtype=np.int32), sessions)
    index = np.repeat(np.arange(sessions, dtype=np.int32), tokens)
    slots = (np.arange(sessions, dtype=np.int32) + first_slot) % SLOTS
    tables, none = np.zeros((sessions, 1), np.int32), np.zeros(0, np.int32)
    return Step(positions, positions, index, positions.astype(np.int64), tables, none, slots)


def bench_state(
    ops: CpuOps, threads: int, seconds: Callable[[Callable[[], None], int], float]
) -> list[dict[str, Any]]:
    """One call is one layer; gb_per_s counts the state read and written."""
    arena = StateArena(
        np.zeros(conv_shape(SLOTS, LAYERS, TAPS, CHANNELS), np.float32),
        np.full(delta_shape(SLOTS, LAYERS, HEADS, DIM, DIM), 0.01, np.float32),
    )
    found = []
    for sessions, tokens in CASES:
        for op, call in calls(ops, arena, sessions, tokens).items():
            each = seconds(call, threads)
            row = {"op": op, "case": f"{sessions} sessions", "tokens": sessions * tokens}
            row |= {"threads": threads, "us": each * 1e6}
            if op == "gated_delta_rule":
                row["gb_per_s"] = 2 * DELTA_BYTES * sessions / each / 1e9
            found.append(row)
    return found


def calls(
    ops: CpuOps, arena: StateArena, sessions: int, tokens: int
) -> dict[str, Callable[[], None]]:
    rng, n, turn = np.random.default_rng(0), sessions * tokens, count()
    steps = [step_of(sessions, tokens, first) for first in range(SLOTS)]

    def some(*shape: int) -> F32:
        return rng.standard_normal(shape).astype(np.float32)

    x, weight, mixed = some(n, CHANNELS), some(CHANNELS, TAPS), np.empty((n, CHANNELS), np.float32)
    q, k, v = some(n, KEY_HEADS, DIM) / 11, some(n, KEY_HEADS, DIM) / 11, some(n, HEADS, DIM)
    a, b = some(n, HEADS), some(n, HEADS)
    decay, beta, out = np.full_like(a, 0.9), np.full_like(a, 0.5), np.empty_like(v)
    ssm_a, bias, norm = -np.ones(HEADS, np.float32), some(HEADS), np.empty_like(q)

    def place() -> tuple[int, Step]:
        i = next(turn)
        return i % LAYERS, steps[i // LAYERS * sessions % SLOTS]

    def rule() -> None:
        layer, step = place()
        ops.gated_delta_rule(out, q, k, v, decay, beta, arena, layer, step)

    def convolve() -> None:
        layer, step = place()
        ops.conv1d(mixed, x, arena, layer, weight, step)

    return {
        "gated_delta_rule": rule,
        "conv1d": convolve,
        "l2_norm": lambda: ops.l2_norm(norm, q, 1e-6, DIM**-0.5),
        "delta_gates": lambda: ops.delta_gates(decay, beta, a, b, ssm_a, bias),
    }
