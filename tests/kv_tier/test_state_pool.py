"""Slots of recurrent state: none is lost, none is given out twice, and who runs comes first."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_tier.state_pool import Checkpoint, OutOfSlots, StatePool


def arrays(num_slots: int) -> tuple[np.ndarray, np.ndarray]:
    """Slot i holds i everywhere."""
    numbers = np.arange(num_slots, dtype=np.float32)
    return (
        np.tile(numbers[:, None, None], (1, 2, 3)),
        np.tile(numbers[:, None, None, None], (1, 2, 1, 4)),
    )


def test_all_slots_can_be_allocated_once():
    pool = StatePool(3)
    assert sorted(pool.allocate() for _ in range(3)) == [0, 1, 2]
    assert not pool.can_allocate
    with pytest.raises(OutOfSlots, match="all 3"):
        pool.allocate()
    pool.check()


def test_freeing_twice_is_refused():
    pool = StatePool(2)
    slot = pool.allocate()
    pool.free(slot)
    with pytest.raises(AssertionError):
        pool.free(slot)


def test_a_copy_is_of_all_arrays():
    conv, delta = arrays(3)
    pool = StatePool(3, (conv, delta))
    source, target = pool.allocate(), pool.allocate()
    pool.copy(source, target)
    assert (conv[target] == source).all() and (delta[target] == source).all()
    delta[source] = 9
    assert (delta[target] == source).all()


def test_a_slot_that_nobody_holds_is_no_target():
    pool = StatePool(2)
    with pytest.raises(AssertionError):
        pool.copy(pool.allocate(), 0)


def test_a_checkpoint_comes_back_as_it_was():
    conv, delta = arrays(4)
    pool = StatePool(4, (conv, delta))
    slot = pool.allocate()
    assert pool.save("a", slot, 40)
    kept = pool.find("a")
    assert kept == Checkpoint("a", 40, kept.slot) and kept.slot != slot
    conv[slot] = delta[slot] = 77
    other = pool.allocate()
    assert pool.restore("a", other) == 40
    assert (conv[other] == slot).all() and (delta[other] == slot).all()
    pool.check()


def test_a_checkpoint_that_is_gone_means_the_start():
    pool = StatePool(2)
    assert pool.restore("never", pool.allocate()) == 0
    assert pool.find("never") is None
    pool.forget("never")


def test_a_later_checkpoint_takes_the_place_of_an_earlier_one():
    pool = StatePool(2)
    slot = pool.allocate()
    assert pool.save("a", slot, 40) and pool.save("a", slot, 80)
    assert pool.find("a").position == 80
    assert pool.num_checkpoints == 1
    pool.check()


def test_who_runs_takes_the_oldest_checkpoint():
    pool = StatePool(4)
    slot = pool.allocate()
    for name in "abc":
        assert pool.save(name, slot, 1)
    pool.save("a", slot, 2)  # now the youngest
    pool.allocate()
    assert [pool.find(name) is not None for name in "abc"] == [True, False, True]
    pool.allocate()
    pool.allocate()
    assert pool.num_checkpoints == 0 and not pool.can_allocate
    assert not pool.save("a", slot, 3)
    pool.check()


def test_a_later_one_of_another_name_takes_the_oldest_too():
    pool = StatePool(2)
    slot = pool.allocate()
    assert pool.save("a", slot, 1) and pool.save("b", slot, 1)
    assert pool.find("a") is None and pool.find("b") is not None


@given(st.integers(1, 5), st.lists(st.tuples(st.integers(0, 3), st.integers(0, 6)), max_size=80))
def test_no_slot_is_ever_lost(num_slots, acts):
    """Each slot's array says whose state it is; a checkpoint always has what was saved."""
    conv, delta = arrays(num_slots)
    pool, held, saved = StatePool(num_slots, (conv, delta)), [], {}
    for number, (act, which) in enumerate(acts):
        if act == 0 and pool.can_allocate:
            held.append(pool.allocate())
            conv[held[-1]] = delta[held[-1]] = 100 + number
        elif act == 1 and held:
            pool.free(held.pop(which % len(held)))
        elif act == 2 and held:
            slot = held[which % len(held)]
            if pool.save(str(which), slot, number + 1):
                saved[str(which)] = (number + 1, float(conv[slot, 0, 0]))
        elif act == 3 and held:
            slot = held[which % len(held)]
            position = pool.restore(str(which), slot)
            if position:
                assert (position, conv[slot, 0, 0]) == saved[str(which)]
                assert (delta[slot] == saved[str(which)][1]).all()
        pool.check()
        assert len(set(held)) == len(held) == pool.num_held
    for slot in held:
        pool.free(slot)
    assert pool.num_held == 0
