"""Each parameter means what OpenAI's and vLLM's users expect; of equals the lowest id is first."""

import math

import numpy as np
import pytest

from kernels.reference import ReferenceOps
from tests.workers.engine.fake import CONTEXT, FakeText, make_request
from workers.engine.sampler import Sampler, penalise
from workers.engine.sequence import Sequence
from workers.text.stream import TextStream

SHARES = [0.05, 0.5, 0.15, 0.3]  # by id; largest first: 1, 3, 2, 0


def sequence_of(prompt=(0,), output=(), **params) -> Sequence:
    request = make_request("r", prompt, max_tokens=500, **params)
    sequence = Sequence(request, TextStream(FakeText(), ()), 0, CONTEXT)
    for token_id in output:
        sequence.append(token_id, frozenset())
    return sequence


def logits_of(shares=SHARES) -> np.ndarray:
    return np.log(np.array(shares)).astype(np.float32)


def drawn(shares=SHARES, hidden=(), count: int = 400, **params) -> set[int]:
    """The ids that ever come out, over many seeds."""
    sampler, row = Sampler(ReferenceOps(), frozenset(hidden)), logits_of(shares)[None]
    draws = [sampler.sample([(sequence_of(seed=s, **params), 0)], row)[0] for s in range(count)]
    return {draw.token_id for draw in draws}


def greedy(row, hidden=(), **params) -> int | None:
    sampler = Sampler(ReferenceOps(), frozenset(hidden))
    sequence = sequence_of(**({"temperature": 0} | params))
    draw = sampler.sample([(sequence, 0)], np.array([row], np.float32))[0]
    return None if draw is None else draw.token_id


def test_greedy_takes_the_largest_and_the_lowest_of_equals():
    assert greedy([1, 3, 2, 3]) == 1


def test_greedy_never_takes_a_hidden_id():
    assert greedy([1, 9, 2, 3], hidden=[1]) == 3
    assert greedy([1, 9, 2, 3], hidden=[1], presence_penalty=1) == 3


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_row_that_is_not_finite_gives_no_draw(bad):
    assert greedy([1, bad, 2, 3]) is None
    assert greedy([1, bad, 2, 3], temperature=1) is None


def test_a_bad_row_leaves_its_neighbours_alone():
    sampler = Sampler(ReferenceOps(), frozenset())
    logits = np.array([[0, 5], [math.nan, 0], [5, 0]], np.float32)
    draws = sampler.sample([(sequence_of(temperature=0), row) for row in range(3)], logits)
    assert [draw and draw.token_id for draw in draws] == [1, None, 0]


def test_without_cuts_everything_can_come_out():
    assert drawn() == {0, 1, 2, 3}


def test_hidden_ids_never_come_out():
    assert drawn(hidden=[1, 2]) == {0, 3}


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"top_k": 1}, {1}),
        ({"top_k": 2}, {1, 3}),
        ({"top_k": 4}, {0, 1, 2, 3}),
        ({"top_k": 99}, {0, 1, 2, 3}),
        ({"top_p": 0.0}, {1}),
        ({"top_p": 0.4}, {1}),
        ({"top_p": 0.79}, {1, 3}),
        ({"top_p": 0.81}, {1, 2, 3}),  # the token that crosses p is kept
        ({"top_p": 0.96}, {0, 1, 2, 3}),
        ({"min_p": 0.29}, {1, 2, 3}),  # relative to the largest: 0.15 / 0.5 = 0.3
        ({"min_p": 0.31}, {1, 3}),
        ({"min_p": 1.0}, {1}),
        ({"top_k": 3, "top_p": 0.52}, {1}),  # shares after top-k: 0.526, 0.316, 0.158
        ({"top_k": 3, "top_p": 0.53}, {1, 3}),
        ({"top_p": 0.81, "min_p": 0.5}, {1, 3}),
    ],
)
def test_cuts(params, expected):
    assert drawn(**params) == expected


def test_temperature_comes_before_top_p():
    """At T = 2 the shares are 0.12, 0.38, 0.21, 0.29: two no longer reach 0.7."""
    assert drawn(top_p=0.7) == {1, 3}
    assert drawn(top_p=0.7, temperature=2) == {1, 2, 3}


def test_a_tiny_temperature_is_greedy():
    assert drawn(temperature=1e-30) == {1}


def test_top_k_keeps_the_lowest_ids_among_equals():
    assert drawn([0.25] * 4, top_k=2) == {0, 1}


def test_top_p_keeps_the_lowest_ids_among_equals():
    assert drawn([0.25] * 4, top_p=0.4) == {0, 1}


def test_draws_come_in_proportion():
    sampler, row = Sampler(ReferenceOps(), frozenset()), logits_of()[None]
    counts = [0] * 4
    for seed in range(4000):
        counts[sampler.sample([(sequence_of(seed=seed), 0)], row)[0].token_id] += 1
    for count, share in zip(counts, SHARES, strict=True):
        assert abs(count - 4000 * share) < 5 * math.sqrt(4000 * share * (1 - share))


def test_the_draw_depends_on_seed_and_position_only():
    sampler = Sampler(ReferenceOps(), frozenset())
    rng = np.random.default_rng(0)
    row = rng.normal(size=96).astype(np.float32)
    others = rng.normal(size=(5, 96)).astype(np.float32)
    one = sampler.sample([(sequence_of(seed=3), 0)], row[None])[0]
    among = sampler.sample([(sequence_of(seed=3), 5)], np.vstack([others, row]))[0]
    assert among == one
    seeds = {sampler.sample([(sequence_of(seed=s), 0)], row[None])[0].token_id for s in range(50)}
    places = {
        sampler.sample([(sequence_of([0] * n, seed=3), 0)], row[None])[0].token_id
        for n in range(1, 50)
    }
    assert len(seeds) > 5 and len(places) > 5


def penalised(row, prompt, output, **params) -> list[float]:
    scores, sequence = np.array(row, np.float32), sequence_of(prompt, output, **params)
    penalise(scores, sequence, sequence.request.params)
    return scores.tolist()


def test_repetition_is_over_prompt_and_output_once_per_id():
    row = [4.0, -4.0, 4.0, 4.0]
    assert penalised(row, [0, 1], [2, 2], repetition_penalty=2) == [2, -8, 2, 4]


def test_presence_and_frequency_are_over_output_alone():
    row = [4.0, 4.0, 4.0, 4.0]
    wanted = {"presence_penalty": 0.5, "frequency_penalty": 1}
    assert penalised(row, [0, 1], [2, 2, 3], **wanted) == [4, 4, 1.5, 2.5]


def test_repetition_is_applied_before_presence():
    assert penalised([4.0], [], [0], repetition_penalty=2, presence_penalty=1) == [1]


def test_penalties_turn_a_greedy_choice():
    assert greedy([1, 3, 2, 0], output=[1], presence_penalty=1.5) == 2
    assert greedy([1, 3, 2, 0], output=[1, 1, 2], frequency_penalty=0.9) == 1
    assert greedy([1, 3, 2, 0], prompt=[1], repetition_penalty=2) == 2


def test_logprobs_are_of_the_raw_logits():
    sampler = Sampler(ReferenceOps(), frozenset([1]))
    sequence = sequence_of(output=[3], temperature=0, presence_penalty=2, logprobs=2)
    draw = sampler.sample([(sequence, 0)], logits_of()[None])[0]
    ids = [token_id for token_id, _ in draw.logprobs]
    assert ids == [2, 1, 3]
    assert [math.exp(lp) for _, lp in draw.logprobs] == pytest.approx([0.15, 0.5, 0.3], rel=1e-5)


def test_no_logprobs_unless_asked():
    sampler = Sampler(ReferenceOps(), frozenset())
    draw = sampler.sample([(sequence_of(temperature=0), 0)], logits_of()[None])[0]
    assert draw.logprobs is None


def test_zero_logprobs_is_the_chosen_token_alone():
    sampler = Sampler(ReferenceOps(), frozenset())
    draw = sampler.sample([(sequence_of(temperature=0, logprobs=0), 0)], logits_of()[None])[0]
    [(token_id, logprob)] = draw.logprobs
    assert token_id == 1
    assert logprob == pytest.approx(math.log(0.5), rel=1e-5)


def test_more_logprobs_than_tokens_gives_all():
    sampler = Sampler(ReferenceOps(), frozenset())
    draw = sampler.sample([(sequence_of(temperature=0, logprobs=20), 0)], logits_of()[None])[0]
    assert [token_id for token_id, _ in draw.logprobs] == [1, 1, 3, 2, 0]


def test_a_temperature_too_small_to_divide_by_is_greedy():
    """Found by schemathesis: 0 / 0 is no number."""
    for temperature in (1e-300, 1e-46, 1e-6):
        assert drawn(temperature=temperature, count=5) == {1}
