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


def key(number: int) -> bytes:
    return bytes([number]) * 32


def test_a_block_with_a_key_is_cached_when_its_last_holder_leaves():
    pool = BlockPool(2)
    block_id = pool.allocate(1)[0]
    assert pool.keep(block_id, key(1))
    pool.free([block_id])
    assert (pool.num_free, pool.num_cached, pool.holders(block_id)) == (2, 1, 0)
    assert pool.find(key(1)) == block_id
    pool.hold(block_id)
    assert (pool.num_free, pool.num_cached, pool.holders(block_id)) == (1, 0, 1)
    pool.check()


def test_free_blocks_are_given_out_before_cached_ones():
    pool = BlockPool(3)
    blocks = pool.allocate(2)
    pool.keep(blocks[0], key(1))
    pool.free(blocks)
    pool.allocate(2)
    assert pool.find(key(1)) == blocks[0] and pool.num_dropped == 0
    assert pool.allocate(1) == [blocks[0]]
    assert pool.find(key(1)) is None and pool.num_dropped == 1
    pool.check()


def test_of_cached_sequences_the_oldest_goes_first_and_of_it_the_end():
    pool = BlockPool(4)
    first, second = pool.allocate(2), pool.allocate(2)
    for number, block_id in enumerate([*first, *second]):
        pool.keep(block_id, key(number))
    pool.free(first)
    pool.free(second)
    assert [pool.allocate(1)[0] for _ in range(4)] == [first[1], first[0], second[1], second[0]]


def test_who_was_found_lately_stays_longest():
    pool = BlockPool(2)
    blocks = pool.allocate(2)
    for number, block_id in enumerate(blocks):
        pool.keep(block_id, key(number))
    pool.free(blocks)
    pool.hold(blocks[1])
    pool.free([blocks[1]])
    assert pool.allocate(1) == [blocks[0]]


def test_a_key_is_of_one_block_and_a_block_has_one_key():
    pool = BlockPool(2)
    one, other = pool.allocate(2)
    assert pool.keep(one, key(1))
    assert not pool.keep(other, key(1))
    assert not pool.keep(one, key(2))
    assert pool.find(key(1)) == one and pool.find(key(2)) is None
    pool.free([other])
    assert pool.num_cached == 0
    pool.check()


def test_a_block_that_nobody_holds_cannot_be_named():
    with pytest.raises(AssertionError, match="held by nobody"):
        BlockPool(2).keep(0, key(1))


def test_a_forgotten_block_is_free_or_stays_held_without_a_key():
    pool = BlockPool(2)
    cached, held = pool.allocate(2)
    for number, block_id in enumerate([cached, held]):
        pool.keep(block_id, key(number))
    pool.free([cached])
    for block_id in (cached, held, held):
        pool.forget(block_id)
        pool.check()
    assert pool.find(key(0)) is None and pool.find(key(1)) is None
    assert (pool.num_free, pool.num_cached, pool.holders(held)) == (1, 0, 1)


def test_asking_for_too_much_drops_nothing():
    pool = BlockPool(2)
    blocks = pool.allocate(2)
    pool.keep(blocks[0], key(1))
    pool.free(blocks)
    with pytest.raises(OutOfBlocks):
        pool.allocate(3)
    assert pool.find(key(1)) == blocks[0]


VERBS = ["allocate", "hold", "free", "keep", "find", "forget"]


@given(st.lists(st.tuples(st.sampled_from(VERBS), st.integers(0, 5)), max_size=80))
def test_any_history_keeps_the_invariants_and_everything_returns(history):
    """Each entry of `held` is one holder of one block; `named` is what a key was given to."""
    pool, held, named = BlockPool(6), [], {}
    for verb, number in history:
        if verb == "allocate" and number <= pool.num_free:
            taken = pool.allocate(number)
            assert not set(taken) & set(held)
            held += taken
            named = {k: b for k, b in named.items() if b not in taken}
        elif verb == "hold" and held:
            pool.hold(held[number % len(held)])
            held.append(held[number % len(held)])
        elif verb == "free" and held:
            pool.free([held.pop(number % len(held))])
        elif verb == "keep" and held:
            block_id = held[number % len(held)]
            is_new = key(number) not in named and block_id not in named.values()
            assert pool.keep(block_id, key(number)) == is_new
            named |= {key(number): block_id} if is_new else {}
        elif verb == "find" and key(number) in named:
            pool.hold(named[key(number)])
            held.append(named[key(number)])
        elif verb == "forget" and key(number) in named:
            pool.forget(named.pop(key(number)))
        pool.check()
        assert {k: pool.find(k) for k in map(key, range(6)) if pool.find(k) is not None} == named
        assert pool.num_free == 6 - len(set(held))
        assert pool.num_cached == len(set(named.values()) - set(held))
    pool.free(held)
    assert pool.num_free == 6
