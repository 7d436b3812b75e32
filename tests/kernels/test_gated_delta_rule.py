"""gated_delta_rule: the recurrent memory of a linear layer, token after token."""

import numpy as np
import pytest

from kernels.ops import StateArena, Step, delta_shape
from tests.kernels.cases import close, same_bits
from tests.kernels.state_cases import LAYER, Recurrence

SHAPES = [  # lengths, heads, k heads, value dim, key dim
    ([1], 1, 1, 8, 8), ([5, 1, 17], 6, 2, 64, 64), ([40], 3, 3, 16, 72), ([9, 30], 4, 1, 128, 128),
]  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
def test_outputs_and_states_agree_with_judge_and_law(ops, judge, scalar, tolerance, shape):
    talk = Recurrence(*shape)
    results = []
    for side in (judge, scalar, ops):
        arena = talk.arena()
        results.append((talk.recur(side, arena, talk.everything()), arena.delta[talk.slots, LAYER]))
    for part in (0, 1):
        close(results[0][part], results[2][part], tolerance["gated_delta_rule"])
        same_bits(results[1][part], results[2][part])


def test_one_token_by_hand(ops):
    """S of 8 x 8 is k e^T afterwards, e = beta v; the second token first decays it by 1/2."""
    q, k, v = (np.zeros((2, 1, 8), np.float32) for _ in range(3))
    k[0, 0, 2], k[1, 0, 2], q[:, 0, 2] = 1, 1, 1
    v[0, 0], v[1, 0] = 4, 6
    gates = np.full((2, 1), 0.5, np.float32)
    out, arena = np.empty_like(v), StateArena(np.zeros((1, 1, 3, 8), np.float32), f32_delta())
    step = Recurrence([2], 1, 1, 8, 8).step([(0, 0, 2)])
    step = Step(*fields(step)[:6], np.zeros(1, np.int32))
    ops.gated_delta_rule(out, q, k, v, gates, gates, arena, 0, step)
    # token 0: e = 0.5 * 4 = 2, out 2;  token 1: S k = 1, e = 0.5 * (6 - 1) = 2.5, out 1 + 2.5
    assert out[0, 0].tolist() == [2] * 8 and out[1, 0].tolist() == [3.5] * 8
    assert arena.delta[0, 0, 0, :, 2].tolist() == [3.5] * 8
    assert np.count_nonzero(arena.delta) == 8


def f32_delta():
    return np.full(delta_shape(1, 1, 1, 8, 8), np.nan, np.float32)


def fields(step):
    return [getattr(step, name) for name in Step.__dataclass_fields__]


def test_v_may_be_columns_of_wider_rows(ops):
    talk = Recurrence([6, 3], 2, 1, 16, 16)
    expected = talk.recur(ops, talk.arena(), talk.everything())
    wide = np.full((9, 100), np.nan, np.float32)
    wide[:, 60:92] = talk.v.reshape(9, 32)
    talk.v = wide[:, 60:92].reshape(9, 2, 16)
    out, step = np.empty((9, 2, 16), np.float32), talk.step(talk.everything())
    inputs = talk.q, talk.k, talk.v, talk.decay, talk.beta
    ops.gated_delta_rule(out, *inputs, talk.arena(), LAYER, step)
    same_bits(expected, out)


def test_no_other_slot_and_no_other_layer_is_touched(ops):
    talk = Recurrence([3, 4], 2, 1, 8, 8)
    arena = talk.arena()
    arena.delta[...] = 7
    talk.recur(ops, arena, talk.everything())
    arena.delta[talk.slots, LAYER] = 7
    assert (arena.delta == 7).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["q", "k", "v", "decay", "beta"])
def test_a_value_that_is_not_finite_spoils_its_own_sequence_only(ops, name, bad):
    talk = Recurrence([5, 6, 7], 2, 1, 16, 16)
    clean_arena, arena = talk.arena(), talk.arena()
    clean = talk.recur(ops, clean_arena, talk.everything())
    getattr(talk, name)[7] = bad  # of sequence 1
    spoiled = talk.recur(ops, arena, talk.everything())
    assert not np.isfinite(spoiled[7]).all()
    same_bits(clean[:7], spoiled[:7])
    same_bits(clean[11:], spoiled[11:])
    same_bits(clean_arena.delta[talk.slots[[0, 2]]], arena.delta[talk.slots[[0, 2]]])


def test_a_spoiled_slot_is_clean_for_its_next_sequence(ops):
    talk = Recurrence([5], 2, 1, 16, 16)
    clean = talk.recur(ops, talk.arena(), [(0, 0, 5)])
    arena = talk.arena()
    talk.v[2] = np.inf
    talk.recur(ops, arena, [(0, 0, 5)])
    assert not np.isfinite(arena.delta[talk.slots, LAYER]).all()
    talk.v[2] = Recurrence([5], 2, 1, 16, 16).v[2]
    same_bits(clean, talk.recur(ops, arena, [(0, 0, 5)]))


def test_a_long_conversation_neither_grows_nor_drifts(ops, judge):
    """k of length 1 and beta below 1 make the update a contraction: float32 suffices for ever."""
    talk = Recurrence([600], 1, 1, 32, 32)
    close(
        talk.recur(judge, talk.arena(), [(0, 0, 600)]),
        talk.recur(ops, talk.arena(), [(0, 0, 600)]),
        (1e-5, 1e-5),
    )
