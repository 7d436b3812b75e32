"""Times and rates are what metrics.py defines."""

from workers.engine.metrics import Histogram, Meter, Times, TokenRate
from workers.histograms import OF_CLASS, SECONDS


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


def test_a_meter_counts_each_time_in_its_bucket_by_class():
    meter, times = Meter(), Times(arrival_ms=1000)
    times.scheduled(1020)
    for now_ms in (1050, 1060, 1080):
        times.token(now_ms)
        meter.token("batch", times)
    meter.finished("batch", times, 1100, (7, 3))
    told = meter.told()
    sums = {"queue": 0.02, "ttft": 0.05, "prefill": 0.03, "decode": 0.03, "e2e": 0.1, "itl": 0.03}
    sums |= {"tpot": 0.015, "prompt": 7.0, "output": 3.0}
    assert {name: row[-1] for name, row in told.items()} == {
        f"{k} batch": v for k, v in sums.items()
    }
    assert sum(told["itl batch"][:-1]) == 2 and sum(told["ttft batch"][:-1]) == 1
    assert told["ttft batch"][SECONDS.index(0.05)] == 1  # a bucket holds its own upper end


def test_a_resumed_request_counts_only_what_was_seen():
    meter, times = Meter(), Times(arrival_ms=0, resumed=True)
    times.scheduled(10)
    times.token(20)
    meter.finished("batch", times, 30, (7, 1))
    assert {name.split()[0] for name in meter.told()} == {"e2e", "prompt", "output"}


def test_the_step_is_a_fading_mean():
    meter = Meter()
    for ms in (10.0, 20.0):
        meter.step(ms, 4)
    assert (meter.step_ms, meter.batch) == (11.0, 4)
    assert meter.told()["step"][-1] == 0.03


def test_what_is_above_all_buckets_is_counted():
    histogram = Histogram(OF_CLASS["ttft"].bounds)
    histogram.observe(1e9)
    assert histogram.told()[-2] == 1
