"""Law one of the ops with state: however tokens are cut into steps, outputs and states keep bits.

Sequences advance by turns in steps of any mixture, on any number of threads, from slots that held
something else before.
"""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kernels.cpu.host import CpuOps
from tests.kernels.cases import same_bits
from tests.kernels.state_cases import LAYER, Recurrence

TALK = Recurrence([13, 1, 30, 6], 6, 2, 24, 40)
OPS = CpuOps(1)


def alone():
    """Each sequence in a step of its own."""
    arena, outs = TALK.arena(), []
    for s, n in enumerate(TALK.lengths):
        part = [(s, 0, n)]
        outs.append((TALK.convolve(OPS, arena, part), TALK.recur(OPS, arena, part)))
    return arena, outs


ARENA, OUTS = alone()

turns = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 9)), min_size=1, unique_by=lambda t: t[0]
)
schedules = st.lists(turns, max_size=12)


def parts_of(schedule):
    """The steps of a schedule as parts, and one last step with whatever is left."""
    done, steps = [0] * 4, []
    for turn in [*schedule, [(s, n) for s, n in enumerate(TALK.lengths)]]:
        ends = [(s, min(done[s] + n, TALK.lengths[s])) for s, n in turn]
        parts = [(s, done[s], end) for s, end in ends if end > done[s]]
        for s, _, end in parts:
            done[s] = end
        if parts:
            steps.append(parts)
    return steps


@given(schedule=schedules, threads=st.integers(1, 6))
def test_any_cut_and_any_neighbours_leave_the_same_bits(schedule, threads):
    ops, arena = CpuOps(threads), TALK.arena()
    for parts in parts_of(schedule):
        conv, delta = TALK.convolve(ops, arena, parts), TALK.recur(ops, arena, parts)
        at = 0
        for s, begin, end in parts:
            rows = slice(at, at := at + end - begin)
            same_bits(OUTS[s][0][begin:end], conv[rows])
            same_bits(OUTS[s][1][begin:end], delta[rows])
    same_bits(ARENA.conv[TALK.slots, LAYER], arena.conv[TALK.slots, LAYER])
    same_bits(ARENA.delta[TALK.slots, LAYER], arena.delta[TALK.slots, LAYER])


@given(cut=st.integers(1, 29))
def test_a_copied_state_goes_on_as_the_first(cut):
    """A checkpoint is the slot's bytes: another slot with the same bytes gives the same tokens."""
    arena = TALK.arena()
    TALK.convolve(OPS, arena, [(2, 0, cut)])
    TALK.recur(OPS, arena, [(2, 0, cut)])
    fork = Recurrence([13, 1, 30, 6], 6, 2, 24, 40)
    fork.slots = np.roll(TALK.slots, 1)
    for part in (arena.conv, arena.delta):
        part[fork.slots[2]] = part[TALK.slots[2]]
    rest = [(2, cut, 30)]
    same_bits(OUTS[2][0][cut:], fork.convolve(OPS, arena, rest))
    same_bits(OUTS[2][1][cut:], fork.recur(OPS, arena, rest))


def test_a_hundred_runs_give_the_same_bits():
    for _ in range(100):
        arena = TALK.arena()
        TALK.recur(CpuOps(2), arena, TALK.everything())
        same_bits(ARENA.delta[TALK.slots, LAYER], arena.delta[TALK.slots, LAYER])
