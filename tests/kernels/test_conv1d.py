"""conv1d: a causal convolution over the tokens of each sequence, then SiLU."""

import numpy as np
import pytest

from kernels.ops import StateArena, conv_shape
from tests.kernels.cases import close, same_bits
from tests.kernels.state_cases import LAYER, Recurrence, normal


@pytest.mark.parametrize("lengths", [[1], [2, 3], [70, 1, 9]])
def test_outputs_and_states_agree_with_judge_and_law(ops, judge, scalar, tolerance, lengths):
    talk = Recurrence(lengths, 1, 1, 8, 8)
    results = []
    for side in (judge, scalar, ops):
        arena = talk.arena()
        out = talk.convolve(side, arena, talk.everything())
        results.append((out, arena.conv[talk.slots, LAYER]))
    close(results[0][0], results[2][0], tolerance["conv1d"])
    same_bits(results[1][0], results[2][0])
    same_bits(results[0][1], results[2][1])


@pytest.mark.parametrize(("taps", "channels"), [(2, 8), (3, 64), (4, 640), (8, 136)])
def test_any_number_of_taps_and_channels(ops, scalar, taps, channels):
    rng = np.random.default_rng(taps)
    step = Recurrence([3, 11], 1, 1, 8, 8).step([(0, 0, 3), (1, 0, 11)])
    x, weight, outs = normal(rng, 14, channels), normal(rng, channels, taps), []
    for side in (scalar, ops):
        arena = StateArena(np.full(conv_shape(4, 1, taps, channels), np.nan, np.float32), x)
        out = np.full_like(x, np.nan)
        side.conv1d(out, x, arena, 0, weight, step)
        outs.append(out)
    same_bits(*outs)


def test_state_holds_the_last_inputs_as_they_were(ops):
    talk = Recurrence([2, 9], 1, 1, 8, 8)
    arena = talk.arena()
    talk.convolve(ops, arena, talk.everything())
    short, long = arena.conv[talk.slots, LAYER]
    same_bits(np.zeros_like(short[0]), short[0])
    same_bits(talk.x[0:2], short[1:])
    same_bits(talk.x[8:11], long)


def test_no_other_slot_and_no_other_layer_is_touched(ops):
    talk = Recurrence([3, 4], 1, 1, 8, 8)
    arena = talk.arena()
    arena.conv[...] = 7
    talk.convolve(ops, arena, talk.everything())
    arena.conv[talk.slots, LAYER] = 7
    assert (arena.conv == 7).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_value_that_is_not_finite_spoils_its_own_channel_for_four_tokens(ops, bad):
    talk = Recurrence([5, 8, 5], 1, 1, 8, 8)
    clean = talk.convolve(ops, talk.arena(), talk.everything())
    talk.x[7, 30] = bad
    spoiled = talk.convolve(ops, talk.arena(), talk.everything())
    assert not np.isfinite(spoiled[7:11, 30]).any()
    spoiled[7:11, 30] = clean[7:11, 30]
    same_bits(clean, spoiled)
