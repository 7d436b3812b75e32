"""What a pool holds is remembered while it is away, and not for ever."""

from router.largest import LATELY_S, Largest
from workers.wire import PoolLoad


def load(pool, blocks, state="ready", model="m", worker="w"):
    return PoolLoad(pool=pool, worker=worker, state=state, total_blocks=blocks, model=model)


def looked(*looks):
    """After looks at (loads, second)."""
    largest = Largest("m")
    for loads, now_s in looks:
        largest.look(loads, now_s)
    return largest


def test_the_largest_worker_of_all_pools_decides():
    loads = [load("cpu", 4), load("cpu", 6, worker="v"), load("gpu", 1)]
    largest = looked((loads, 0.0))
    assert (largest.blocks, largest.tokens) == ({"cpu": 6, "gpu": 1}, 6 * 256)


def test_who_is_not_ready_or_serves_another_model_says_nothing():
    loads = [load("cpu", 4, "loading"), load("gpu", 8, model="other"), load("gpu", 0)]
    assert looked((loads, 0.0)).tokens is None


def test_a_pool_that_is_away_is_remembered_for_a_while():
    both, one = [load("cpu", 4), load("gpu", 8)], [load("cpu", 4)]
    assert looked((both, 0.0), (one, LATELY_S)).tokens == 8 * 256
    assert looked((both, 0.0), (one, LATELY_S + 1)).tokens == 4 * 256


def test_a_pool_that_comes_back_smaller_holds_what_it_says_now():
    assert looked(([load("gpu", 8)], 0.0), ([load("gpu", 2)], 5.0)).tokens == 2 * 256
