"""Blocks are counted: none is lost, none is given out twice."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_tier.block_pool import BlockPool, OutOfBlocks


def test_all_blocks_can_be_allocated_once():
    pool = BlockPool(4)
    assert sorted(pool.allocate(4)) == [0, 1, 2, 3]
    assert pool.num_free == 0
    pool.check()


def test_asking_for_too_much_takes_nothing():
    pool = BlockPool(4)
    pool.allocate(3)
    with pytest.raises(OutOfBlocks) as caught:
        pool.allocate(2)
    assert (caught.value.wanted, caught.value.free) == (2, 1)
    assert pool.num_free == 1
    pool.check()


def test_a_shared_block_is_free_when_its_last_holder_frees_it():
    pool = BlockPool(2)
    blocks = pool.allocate(1)
    pool.hold(blocks[0])
    assert pool.holders(blocks[0]) == 2
    pool.free(blocks)
    assert pool.num_free == 1
    pool.free(blocks)
    assert pool.num_free == 2


def test_freeing_twice_is_refused():
    pool = BlockPool(2)
    blocks = pool.allocate(1)
    pool.free(blocks)
    with pytest.raises(AssertionError, match="freed twice"):
        pool.free(blocks)


def test_a_free_block_cannot_be_held():
    with pytest.raises(AssertionError, match="cannot be held"):
        BlockPool(2).hold(0)


def test_the_block_freed_last_is_given_out_first():
    pool = BlockPool(8)
    first = pool.allocate(3)
    pool.free([first[1]])
    assert pool.allocate(1) == [first[1]]


def test_check_sees_a_block_that_is_free_and_held():
    pool = BlockPool(2)
    pool._holders[0] = 1
    with pytest.raises(AssertionError):
        pool.check()


@given(st.lists(st.tuples(st.sampled_from(["allocate", "share", "free"]), st.integers(0, 5))))
def test_any_history_keeps_the_invariants_and_everything_returns(history):
    pool, held = BlockPool(6), []
    for verb, number in history:
        if verb == "allocate" and number <= pool.num_free:
            held += [[block_id] for block_id in pool.allocate(number)]
        elif verb == "share" and held:
            for block_id in held[number % len(held)]:
                pool.hold(block_id)
            held.append(held[number % len(held)])
        elif verb == "free" and held:
            pool.free(held.pop(number % len(held)))
        pool.check()
        assert pool.num_free == 6 - len({block_id for blocks in held for block_id in blocks})
    for blocks in held:
        pool.free(blocks)
    assert pool.num_free == 6
