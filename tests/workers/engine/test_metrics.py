"""Times and rates are what metrics.py defines."""

from workers.engine.metrics import Times, TokenRate


def test_times_of_a_request():
    times = Times(arrival_ms=1000)
    times.scheduled(1200)
    times.scheduled(1300)
    for now_ms in (1500, 1520, 1580):
        times.token(now_ms)
    assert (times.queue_ms, times.ttft_ms, times.tpot_ms) == (200.0, 500.0, 40.0)


def test_one_token_has_no_time_per_token():
    times = Times(arrival_ms=0)
    times.token(5)
    assert times.tpot_ms is None


def test_a_resumed_request_reports_only_what_its_owner_saw():
    times = Times(arrival_ms=0, resumed=True)
    times.scheduled(10)
    times.token(20)
    times.token(30)
    assert (times.queue_ms, times.ttft_ms, times.tpot_ms) == (None, None, 10.0)


def test_a_clock_set_back_never_gives_negative_times():
    times = Times(arrival_ms=1000)
    times.scheduled(900)
    assert times.queue_ms == 0.0


def test_the_rate_forgets_after_ten_seconds():
    rate = TokenRate()
    rate.add(0, 30)
    rate.add(5_000, 20)
    assert rate.tokens_per_s(6_000) == 5.0
    assert rate.tokens_per_s(10_000) == 2.0
    assert rate.tokens_per_s(15_000) == 0.0
