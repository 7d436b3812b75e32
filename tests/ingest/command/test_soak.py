"""What a soak concludes from what it saw. The soak itself takes half an hour: RESULTS.md."""

import pytest

from ingest.command.bench.soak_load import Record
from ingest.command.bench.soak_watch import Sample, family, growth, rows_of, slope, thirds, verdict

FLAT = [{"process": "api", "growth_mib_per_10min": 0.9}]
PARTS = [{"p99_ms": 100}, {"p99_ms": 300}, {"p99_ms": 120}]


def sample(at_s, resident_kib, pid=7):
    told = {"pid": pid, "resident": resident_kib, "anonymous": 0, "threads": 1, "open_files": 3}
    return Sample(at_s, {"api": told}, store_bytes=0, keys=0, files=0, file_bytes=0)


def test_growth_is_the_slope_of_a_line_through_all_looks():
    assert slope([0, 1, 2], [5, 7, 9]) == 2
    assert slope([0, 1, 2, 3], [1, 0, 1, 0]) == pytest.approx(-0.2)
    assert slope([1], [1]) == 0
    looks = [sample(600 * n, 1024 * (100 + 2 * n)) for n in range(4)]
    assert growth(looks, "api") == pytest.approx(2)
    (row,) = rows_of(looks)
    assert (row["resident_mib"], row["growth_mib_per_10min"]) == ([100.0, 106.0], 2.0)


def test_a_process_that_was_restarted_grows_from_then_on():
    looks = [sample(0, 1024 * 900), sample(600, 1024 * 100, 8), sample(1200, 1024 * 101, 8)]
    (row,) = rows_of(looks)
    assert (row["restarts"], row["growth_mib_per_10min"]) == (1, 1.0)


def test_thirds_count_what_finished_by_when_it_was_sent():
    ends = ["finished", "finished", "overloaded", "finished"]
    sent = [5.0, 11.0, 15.0, 39.9]
    records = [Record(at, 2.0, "http", "batch", end) for at, end in zip(sent, ends, strict=True)]
    rows = thirds(records, 10.0, 40.0)
    assert [row["jobs"] for row in rows] == [1, 0, 1]
    assert rows[0]["p99_ms"] == 2000


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("job:soak-1", "job"),
        ("rq:job:soak-1", "rq:job"),
        ("rq:executions:a", "rq:executions"),
        ("session:s1", "session"),
        ("session:s1:waiting", "session:waiting"),
        ("ends", "ends"),
    ],
)
def test_keys_are_counted_by_what_they_are(name, kind):
    assert family(name) == kind


def test_what_stays_the_same_is_flat():
    told = verdict(FLAT, PARTS, {"ends": 1, "session": 4}, 4)
    assert told["memory_flat"] and told["latency_flat"] and not told["leaked"]


def test_what_grows_slows_down_or_stays_is_told():
    grown = [*FLAT, {"process": "cpu", "growth_mib_per_10min": 1.0}]
    assert verdict(grown, PARTS, {}, 0)["growing"] == ["cpu"]
    assert not verdict(FLAT, [*PARTS, {"p99_ms": 121}], {}, 0)["latency_flat"]
    assert verdict(FLAT, PARTS, {"job": 1, "session": 5}, 4)["leaked"] == {"job": 1, "session": 5}
