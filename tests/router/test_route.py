"""Where a request runs, as a table of what the pools say of themselves."""

import pytest

from router.route import NoPool, Route, max_sequence_tokens, route
from workers.wire import PoolLoad, Request, SamplingParams


def request(tokens=300):
    params = SamplingParams(max_tokens=tokens - 1)
    return Request(id="a", model="m", token_ids=(1,), arrival_ms=0, params=params)


def pool(name, state="ready", blocks=4, model="m"):
    return PoolLoad(pool=name, worker="w", state=state, total_blocks=blocks, model=model)


@pytest.mark.parametrize(
    ("loads", "home", "expected"),
    [
        ([pool("cpu")], None, Route("cpu", "cpu: ready, gpu is not reporting")),
        ([pool("cpu"), pool("gpu", "absent")], None, Route("cpu", "cpu: ready, gpu is absent")),
        ([pool("gpu", "loading"), pool("cpu")], None, Route("cpu", "cpu: ready, gpu is loading")),
        ([pool("cpu"), pool("gpu")], None, Route("gpu", "gpu: ready")),
        (
            [pool("cpu"), pool("gpu", blocks=1)],
            None,
            Route("cpu", "cpu: ready, gpu cannot hold the request"),
        ),
        ([pool("cpu"), pool("gpu")], "cpu", Route("cpu", "cpu: keeps the session")),
        (
            [pool("cpu", "loading"), pool("gpu")],
            "cpu",
            Route("gpu", "gpu: ready, cpu keeps the session and is loading"),
        ),
        (
            [pool("cpu"), pool("gpu", blocks=1)],
            "gpu",
            Route("cpu", "cpu: ready, gpu keeps the session and cannot hold the request"),
        ),
        ([pool("cpu", blocks=0)], None, Route("cpu", "cpu: ready, gpu is not reporting")),
    ],
)
def test_the_ready_pool_that_holds_it_takes_it(loads, home, expected):
    assert route(request(), loads, home) == expected


@pytest.mark.parametrize(
    ("loads", "words"),
    [
        ([], "no pool reports"),
        ([pool("cpu", "loading")], "cpu loading"),
        ([pool("cpu", model="other")], "no pool is ready for m"),
    ],
)
def test_without_a_ready_pool_it_waits(loads, words):
    answer = route(request(), loads, None)
    assert isinstance(answer, NoPool) and not answer.forever
    assert words in answer.reason


def test_what_no_pool_can_ever_hold_is_refused():
    answer = route(request(tokens=1025), [pool("cpu", blocks=4), pool("gpu", blocks=1)], None)
    assert isinstance(answer, NoPool) and answer.forever
    assert "1025 tokens, and this node holds 1024" in answer.reason
    assert isinstance(route(request(tokens=1024), [pool("cpu", blocks=4)], None), Route)


def test_admission_leaves_room_for_what_the_largest_ready_pool_holds():
    assert max_sequence_tokens([pool("cpu", blocks=4), pool("gpu", blocks=1)]) == 1024
    assert max_sequence_tokens([pool("cpu", "loading"), pool("gpu", blocks=1)]) == 256
    assert max_sequence_tokens([pool("gpu", "absent", blocks=0)]) is None
