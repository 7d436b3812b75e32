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


def copier(*arrays: np.ndarray):
    """Copies a slot of each."""

    def copy(source: int, target: int) -> None:
        for array in arrays:
            array[target] = array[source]

    return copy


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
    pool = StatePool(3, copier(conv, delta))
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
    pool = StatePool(4, copier(conv, delta))
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


def test_a_passing_checkpoint_makes_room_before_a_lasting_one():
    pool = StatePool(4)
    slot = pool.allocate()
    assert pool.save("lasting", slot, 1, is_lasting=True)
    assert pool.save("passing", slot, 2) and pool.save("other", slot, 3)
    pool.allocate()
    assert [pool.find(name) is None for name in ("lasting", "passing", "other")] == [0, 1, 0]
    pool.allocate()
    pool.allocate()
    assert pool.find("lasting") is None
    pool.check()


def test_a_passing_checkpoint_never_costs_a_lasting_one():
    pool = StatePool(2)
    slot = pool.allocate()
    assert pool.save("lasting", slot, 1, is_lasting=True)
    assert not pool.save("passing", slot, 2)
    assert pool.save("newer", slot, 3, is_lasting=True)
    assert pool.find("lasting") is None


def test_who_ends_leaves_its_slot_as_a_checkpoint():
    conv, delta = arrays(2)
    pool = StatePool(2, copier(conv, delta))
    slot = pool.allocate()
    conv[slot] = delta[slot] = 42
    pool.settle("a", slot, 7)
    assert pool.find("a") == Checkpoint("a", 7, slot, is_lasting=True)
    assert (pool.num_held, pool.num_checkpoints, pool.num_free) == (0, 1, 1)
    other = pool.take("a")
    assert other != slot and (conv[other] == 42).all() and (delta[other] == 42).all()
    assert pool.find("a") is not None
    pool.check()


def test_taking_gives_the_checkpoints_own_slot_before_another_lasting_one_goes():
    pool = StatePool(2)
    for name in "ab":
        pool.settle(name, pool.allocate(), 5)
    slot = pool.find("a").slot
    assert pool.take("a") == slot
    assert pool.find("a") is None and pool.find("b") is not None
    pool.check()


def test_a_pinned_checkpoint_stays_whoever_wants_its_slot():
    conv, delta = arrays(3)
    pool = StatePool(3, copier(conv, delta))
    for name in "ab":
        pool.settle(name, pool.allocate(), 5)
    slot = pool.pin("a")
    conv[slot] = 9
    pool.allocate()
    pool.allocate()
    assert not pool.can_allocate
    for forget in (lambda: pool.forget("a"), pool.forget_all):
        forget()
        assert pool.find("a").slot == slot
    with pytest.raises(OutOfSlots):
        pool.allocate()
    with pytest.raises(OutOfSlots):
        pool.take("a")
    pool.unpin("a")
    assert pool.can_allocate and pool.take("a") == slot
    pool.check()


def test_a_pinned_checkpoint_is_copied_even_if_another_has_to_go():
    pool = StatePool(2)
    for name in "ab":
        pool.settle(name, pool.allocate(), 5)
    pool.pin("a")
    slot = pool.find("a").slot
    assert pool.take("a") != slot
    assert pool.find("a").slot == slot and pool.find("b") is None


def test_settling_what_is_pinned_frees_the_second_slot():
    """Two sequences came to the same state; somebody is reading the first one's."""
    pool = StatePool(2)
    pool.settle("a", pool.allocate(), 5)
    slot = pool.pin("a")
    pool.settle("a", pool.allocate(), 5)
    assert pool.find("a").slot == slot and pool.num_free == 1
    assert pool.save("a", pool.allocate(), 5)
    assert pool.find("a").slot == slot
    pool.check()


def test_what_is_pinned_twice_is_unpinned_twice():
    pool = StatePool(1)
    pool.settle("a", pool.allocate(), 5)
    pool.pin("a")
    pool.pin("a")
    pool.unpin("a")
    assert not pool.can_allocate and pool.num_pins == 1
    pool.unpin("a")
    assert pool.can_allocate
    with pytest.raises(AssertionError, match="not pinned"):
        pool.unpin("a")


@given(st.integers(1, 5), st.lists(st.tuples(st.integers(0, 7), st.integers(0, 6)), max_size=80))
def test_no_slot_is_ever_lost(num_slots, acts):
    """Each slot's array says whose state it is; a checkpoint always has what was saved.

    Names that are pinned have a single content: it is not saved again here.
    """
    conv, delta = arrays(num_slots)
    pool, held, saved, pins = StatePool(num_slots, copier(conv, delta)), [], {}, []
    for number, (act, which) in enumerate(acts):
        name = str(which)
        slot = held[which % len(held)] if held else None
        if act == 0 and pool.can_allocate:
            held.append(pool.allocate())
            conv[held[-1]] = delta[held[-1]] = 100 + number
        elif act == 1 and held:
            pool.free(held.pop(which % len(held)))
        elif act == 2 and held and name not in pins:
            if pool.save(name, slot, number + 1, is_lasting=bool(number % 2)):
                saved[name] = (number + 1, float(conv[slot, 0, 0]))
        elif act == 3 and held:
            position = pool.restore(name, slot)
            if position:
                assert (position, conv[slot, 0, 0]) == saved[name]
                assert (delta[slot] == saved[name][1]).all()
        elif act == 4 and held and name not in pins:
            saved[name] = (number + 1, float(conv[slot, 0, 0]))
            pool.settle(name, held.pop(which % len(held)), number + 1)
        elif act == 5 and pool.can_allocate and pool.find(name) is not None:
            held.append(pool.take(name))
            assert conv[held[-1], 0, 0] == saved[name][1]
        elif act == 6 and pool.find(name) is not None:
            assert conv[pool.pin(name), 0, 0] == saved[name][1]
            pins.append(name)
        elif act == 7 and pins:
            pool.unpin(pins.pop(which % len(pins)))
        pool.check()
        assert len(set(held)) == len(held) == pool.num_held
        assert all(conv[pool.find(pin).slot, 0, 0] == saved[pin][1] for pin in pins)
    for slot in held:
        pool.free(slot)
    assert pool.num_held == 0
