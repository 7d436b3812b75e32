"""A slow receiver waits for itself and for nobody else."""

import pytest

from workers.webhook.endpoints import FORGET_AT, MEAN_WEIGHT, WAIT_S_MAX, WAIT_S_MIN, Endpoints


@pytest.fixture
def endpoints():
    endpoints = Endpoints(per_endpoint=2, clock=lambda: endpoints.now)
    endpoints.now = 100.0
    return endpoints


def test_an_endpoint_has_so_many_places(endpoints):
    assert [endpoints.begin("a") is None for _ in range(3)] == [True, True, False]
    assert endpoints.begin("b") is None


def test_a_place_given_back_is_taken_again(endpoints):
    endpoints.begin("a")
    endpoints.begin("a")
    endpoints.end("a", 0.1)
    assert endpoints.begin("a") is None


def test_those_who_wait_get_turns_one_after_the_other(endpoints):
    """As fast as the endpoint answered so far: two places, 1 s each, a turn every half second."""
    endpoints.begin("a")
    endpoints.end("a", 1.0 / MEAN_WEIGHT)
    endpoints.begin("a")
    endpoints.begin("a")
    waits = [endpoints.begin("a") for _ in range(3)]
    assert waits == pytest.approx([WAIT_S_MIN + 0.5, WAIT_S_MIN + 1.0, WAIT_S_MIN + 1.5])


def test_a_slow_endpoint_keeps_one_place_until_it_is_quick_again(endpoints):
    endpoints.begin("a")
    endpoints.end("a", 15.0)
    assert [endpoints.begin("a") is None for _ in range(2)] == [True, False]
    for _ in range(10):
        endpoints.end("a", 0.0)
        assert endpoints.begin("a") is None
    assert endpoints.begin("a") is None


def test_turns_pass_with_time(endpoints):
    endpoints.begin("a")
    endpoints.begin("a")
    first = endpoints.begin("a")
    endpoints.now += 1000
    assert endpoints.begin("a") == pytest.approx(first)


def test_nobody_waits_longer_than_the_limit(endpoints):
    endpoints.begin("a")
    endpoints.end("a", 1e6)
    endpoints.begin("a")
    assert all(endpoints.begin("a") <= WAIT_S_MAX for _ in range(10))


def test_idle_endpoints_are_forgotten_and_busy_ones_are_not(endpoints):
    endpoints.begin("busy")
    for n in range(2 * FORGET_AT):
        endpoints.begin(f"e{n}")
        endpoints.end(f"e{n}", 0.0)
    assert len(endpoints.known) <= FORGET_AT
    assert endpoints.known["busy"].in_flight == 1
