"""lockstep bench kv: whole, on its smallest plan. No speed is asserted anywhere."""

import json
from pathlib import Path

import pytest

from ingest.command.bench.kv.plan import rounded, row
from ingest.command.bench.kv.seat import Seat
from ingest.command.bench.kv.write import write_plainly
from ingest.command.main import run
from workers.settings import settings

GGUF = Path(__file__).parents[2] / "golden"


@pytest.fixture(scope="module")
def tiny_home(tmp_path_factory):
    from workers.model import catalog

    home = tmp_path_factory.mktemp("home")
    catalog.add(GGUF / "tiny_llama.Q4_0.gguf", "tiny", home, progress=None)
    return home


@pytest.fixture
def bench(tiny_home, monkeypatch, capfd):
    """Runs `lockstep bench kv` over a tiny model; gives exit code, stdout, stderr."""
    monkeypatch.setenv("LOCKSTEP_HOME", str(tiny_home))
    settings.cache_clear()

    def call(*arguments):
        code = run(["bench", "kv", "--model", "tiny", "--threads", "1", *arguments])
        return code, *capfd.readouterr()

    yield call
    settings.cache_clear()


@pytest.fixture
def seat(tiny_home, tmp_path):
    seat = Seat(tiny_home / "models" / "tiny", tmp_path / "kv", 1, 700)
    yield seat
    seat.tier.close()


def test_every_case_has_its_rows_and_nothing_is_left(bench, tiny_home):
    code, out, _ = bench("--tokens", "300,600", "--rounds", "1", "--sessions", "5", "--json")
    assert code == 0
    rows = json.loads(out)["rows"]
    found = {(one["case"], one.get("tokens"), one.get("tier")) for one in rows}
    tiers = ("ram", "page cache", "disk")
    expected = {("resume", n, tier) for n in (300, 600) for tier in tiers}
    expected |= {
        (c, n, None) for n in (300, 600) for c in ("suspend", "append", "manifest", "fork")
    }
    expected |= {("step p99", 600, None), ("idle start", None, None), ("idle RAM", None, None)}
    expected |= {("idle list 100", None, None), ("idle list all", None, None)}
    assert found == expected
    assert all({"ours", "goal", "ratio", "unit"} <= one.keys() for one in rows)
    assert all(one["bytes"] > 0 for one in rows if one["case"] == "resume")
    assert list((tiny_home / "bench").iterdir()) == []


def test_a_person_gets_a_table(bench):
    code, out, _ = bench("--case", "fork", "--tokens", "256", "--rounds", "1")
    assert code == 0 and "fork" in out and "goal" in out


@pytest.mark.parametrize("arguments", [["--case", "x"], ["--tokens", "a"], ["--tokens", "255"]])
def test_a_wrong_plan_is_refused(bench, arguments):
    code, _, err = bench(*arguments)
    assert code == 2 and arguments[0] in err


def test_a_fork_writes_no_kv(bench):
    _, out, _ = bench("--case", "fork", "--tokens", "600", "--rounds", "1", "--json")
    (found,) = json.loads(out)["rows"]
    assert found["bytes"] <= 16384  # of its manifests alone


@pytest.mark.parametrize("kv", ["computed", "made up"])
def test_a_resumed_session_computes_only_what_is_new(seat, kv):
    ids = seat.token_ids(600)
    if kv == "computed":
        ids, num_kv = seat.computed(ids, "bench")
    else:
        seat.tier.put("bench", seat.made_up(ids, "bench"))
        num_kv = 512
    for prepare in (seat.warm, seat.cool):
        prepare()
        first = seat.first_token(seat.engine(), [*ids, 1, 2, 3], "bench", num_kv)
        assert first.cached == num_kv and first.seconds > first.fetch_s
    assert seat.first_token(seat.engine(), [*ids, 1, 2, 3], "bench", 0).cached == 0


def test_what_was_cleared_is_gone(seat):
    seat.tier.put("bench", seat.made_up(seat.token_ids(512), "bench"))
    assert len(seat.files()) == 2
    seat.clear()
    assert seat.files() == [] and seat.tier.ledger.totals().num_objects == 0


def test_plain_files_are_taken_away(tmp_path):
    assert write_plainly(tmp_path / "plain", 2, (1 << 20) + 4096) > 0
    assert list(tmp_path.iterdir()) == []


def test_a_row_is_ours_beside_its_goal():
    found = row("resume", "ms", 10.0, 20.0, tier="disk")
    assert (found["ours"], found["goal"], found["ratio"], found["tier"]) == (
        10.0,
        20.0,
        0.5,
        "disk",
    )
    assert row("fork", "ms", 10.0)["ratio"] is None
    assert rounded(0.0123456) == 0.01235 and rounded(123456.0) == 123500
