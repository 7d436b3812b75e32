"""What a pool says of itself is what its engine has before it."""

import pytest

from tests.workers.engine.played import Played
from workers.engine.lately import Lately
from workers.engine.load import load_of
from workers.engine.metrics import Meter
from workers.queue.reporting import with_load
from workers.wire import PoolLoad


def told(pool, lately=None, now_ms=0.0):
    """What a pool with this scheduler reports."""
    bare = PoolLoad(pool="cpu", worker="w", state="ready")
    classes = [sequence.sla.name for sequence in pool.here]
    load = load_of(pool.scheduler, 0.0, {}, Meter())
    return with_load(bare, load, None, classes, lately or Lately(), now_ms)


def test_what_is_left_of_prompts_is_told_by_class():
    """The router counts only those that are computed before a request of its class."""
    pool = Played(max_batch=4, max_step_tokens=64)
    pool.add("decodes", 10, 30)
    pool.step()
    pool.add("urgent", 50, 8, sla="realtime")
    pool.add("long", 900, 8, sla="batch")
    load = told(pool)
    assert load.prefill_by_class == {"realtime": 50, "batch": 900}
    assert (load.prefill_tokens, load.by_class["standard"]) == (950, 1)
    pool.run()
    assert (told(pool).prefill_by_class, told(pool).prefill_tokens) == ({}, 0)


def test_the_length_of_answers_is_told_by_class_and_fades():
    lately = Lately()
    for num_tokens in (100, 200):
        lately.ended("batch", num_tokens)
    assert told(Played(), lately).output_tokens == {"batch": 110.0}


def test_what_comes_through_is_told_a_second_by_class():
    """The router knows by it what will pass a request that waits."""
    pool, lately = Played(max_batch=4, max_step_tokens=64), Lately()
    told(pool, lately)
    pool.add("a", 300, 2, sla="realtime")
    pool.run()
    lately.ended("realtime", 2)
    load = told(pool, lately, 60_000.0)
    assert load.prompts_per_s == {"realtime": 5.0}
    assert load.outputs_per_s == {"realtime": pytest.approx(2 / 60, abs=1e-3)}
    assert load.budget_ms == pool.scheduler.budget_ms
