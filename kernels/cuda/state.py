"""The GPU's ops with state: the convolution and the gated delta rule of linear layers.

A block of a kernel finds the tokens of its sequence by itself: the step's arrays are all it needs.
"""

import numpy as np

from kernels.cuda.checks import check_state_step, checked, rows_of
from kernels.cuda.geometry import MAX_KEY_DIM, MAX_TAPS, up
from kernels.cuda.launch import Kernels, Long
from kernels.ops import F32, StateArena, Step


def conv1d(
    kernels: Kernels, out: F32, x: F32, state: StateArena, layer: int, weight: F32, step: Step
) -> None:
    num_tokens, channels = x.shape
    num_slots, num_layers, kept, width = state.conv.shape
    taps = weight.shape[1]
    assert width == channels == weight.shape[0] and channels % 8 == 0, (weight.shape, width)
    assert kept == taps - 1 and 2 <= taps <= MAX_TAPS, (kept, taps)
    assert 0 <= layer < num_layers, (layer, num_layers)
    checked(out, np.float32, x.shape, is_written=True)
    checked(x, np.float32)
    checked(weight, np.float32)
    checked(state.conv, np.float32, is_written=True)
    assert not np.may_share_memory(out, x), "conv1d: out overlaps x"
    check_state_step(step, num_tokens, num_slots)
    of_step = (step.positions, step.seq_index, step.state_slots)
    sizes = (Long(num_layers * kept * width), num_tokens, channels, taps)
    arrays = (out, x, weight, state.conv[0, layer])
    kernels.run("conv1d", (up(channels, 128), num_tokens), 128, *arrays, *of_step, *sizes)


def gated_delta_rule(
    kernels: Kernels, out: F32, q: F32, k: F32, v: F32, decay: F32, beta: F32,
    state: StateArena, layer: int, step: Step,
) -> None:  # fmt: skip
    num_tokens, heads, value_dim = v.shape
    k_heads, key_dim = k.shape[1:]
    num_slots, num_layers = state.delta.shape[:2]
    assert state.delta.shape[2:] == (heads, value_dim, key_dim), (state.delta.shape, v.shape)
    assert heads % k_heads == 0 and value_dim % 8 == 0, (heads, k_heads, value_dim)
    assert key_dim % 8 == 0 and key_dim <= MAX_KEY_DIM, key_dim
    assert 0 <= layer < num_layers, (layer, num_layers)
    stride = rows_of(v, out)
    for x, shape in ((q, k.shape), (k, (num_tokens, k_heads, key_dim))):
        checked(x, np.float32, shape)
    for x in (decay, beta):
        checked(x, np.float32, (num_tokens, heads))
    assert not any(np.may_share_memory(out, x) for x in (q, k, v)), "out overlaps an input"
    checked(state.delta, np.float32, is_written=True)
    check_state_step(step, num_tokens, num_slots)
    room = next(n for n in (32, 128, 256) if key_dim <= n)
    sizes = (heads, k_heads, value_dim, key_dim, stride)
    kernels.run(
        f"gated_delta_rule_{room}", (up(value_dim, 16), heads, num_tokens), 128,
        out, q, k, v, decay, beta, state.delta[0, layer],
        step.positions, step.seq_index, step.state_slots,
        Long(num_layers * heads * value_dim * key_dim), num_tokens, *sizes,
    )  # fmt: skip
