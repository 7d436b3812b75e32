"""What a pool says of itself is what its engine has before it."""

from tests.workers.engine.played import Played
from workers.engine.load import load_of
from workers.engine.metrics import Meter
from workers.queue.reporting import Outputs, with_load
from workers.wire import PoolLoad, Usage


def told(pool, outputs=None):
    """What a pool with this scheduler reports."""
    bare = PoolLoad(pool="cpu", worker="w", state="ready")
    classes = [sequence.sla.name for sequence in pool.here]
    return with_load(
        bare, load_of(pool.scheduler, 0.0, {}, Meter()), None, classes, outputs or Outputs()
    )


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
    outputs = Outputs()
    for num_tokens in (100, 200):
        outputs.add("batch", Usage(prompt_tokens=1, output_tokens=num_tokens))
    assert told(Played(), outputs).output_tokens == {"batch": 110.0}
