"""Open-loop load: asked by a seed, never waiting, times from the scheduled arrival, misses told."""

import asyncio
import json
from itertools import pairwise

import pytest

from ingest.access import gate
from ingest.access.keys import Key, add_key
from ingest.command.bench.serve.drive import drive
from ingest.command.bench.serve.load import Load, Prompts, wishes_of, wishes_of_trace
from ingest.command.bench.serve.record import Record
from ingest.command.bench.serve.shown import HEADS, MEASURES
from ingest.command.bench.serve.summary import percentile, rows_of
from ingest.command.main import run
from router.simulator.workload import Lengths, Wish
from tests.ingest.stub_node import Play
from workers.settings import settings as read_settings
from workers.sla import SlaTable
from workers.wire import EndEvent

TABLE = SlaTable()
MIX = {"realtime": 0.5, "batch": 0.5}
FAST = ["--rate", "60", "--seconds", "0.2", "--prompt-tokens", "8", "--output-tokens", "4"]


def load(**changes):
    lengths = {"prompt": Lengths(64, 0.5, 512), "output": Lengths(16, 0.5, 128)}
    fields = {"rate": 5.0, "seconds": 200.0, "shape": 1.0, "mix": MIX, "seed": 1, **lengths}
    return Load(**(fields | changes))


def test_the_same_seed_asks_the_same_and_another_something_else():
    assert wishes_of(load()) == wishes_of(load())
    assert wishes_of(load()) != wishes_of(load(seed=2))
    prompts = Prompts(range(100), 1)
    wish = wishes_of(load())[0]
    assert prompts.of(wish) == prompts.of(wish) != Prompts(range(100), 2).of(wish)
    assert len(prompts.of(wish)) == wish.prompt


@pytest.mark.parametrize(("shape", "low", "high"), [(1.0, 0.8, 1.25), (0.25, 1.6, 2.5)])
def test_arrivals_have_the_rate_and_come_as_evenly_as_asked(shape, low, high):
    """Of a gamma process intervals vary by 1 / sqrt(shape) of their mean."""
    at_s = [wish.arrival_ms / 1000 for wish in wishes_of(load(shape=shape))]
    gaps = [b - a for a, b in pairwise(at_s)]
    mean = sum(gaps) / len(gaps)
    spread = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert 4 < 1 / mean < 6.5
    assert low < spread / mean < high


def test_shares_of_classes_are_as_asked():
    asked = wishes_of(load(mix={"realtime": 3.0, "standard": 1.0}))
    assert 0.68 < sum(wish.sla == "realtime" for wish in asked) / len(asked) < 0.82


def test_a_trace_brings_its_own_arrivals_and_lengths(tmp_path):
    path = tmp_path / "trace.csv"
    rows = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    rows += ["2023-11-16 18:15:46.5,374,44", "2023-11-16 18:15:50.5,90000,9000"]
    path.write_text("\n".join(rows))
    asked = wishes_of_trace(path, load(), speed=2.0, longest=1000, most_output=400)
    assert [(w.arrival_ms, w.prompt, w.output) for w in asked] == [(0, 374, 44), (2000, 600, 400)]


class SlowWay:
    """Answers only when all have been asked."""

    def __init__(self, expected):
        self.asked, self.expected, self.all_here = 0, expected, asyncio.Event()

    async def ask(self, wish, record, clock):
        self.asked += 1
        if self.asked == self.expected:
            self.all_here.set()
        await self.all_here.wait()
        record.tokens_s.append(clock.now())
        record.end_s, record.status, record.output_tokens = clock.now(), "finished", 1

    async def close(self, left):
        self.left = [record.id for record in left]


def wish(number, at_s):
    return Wish(f"r{number}", "realtime", 1000 * at_s, 4, 1, 1)


def test_a_slow_answer_delays_no_request_and_counts_from_when_it_was_due():
    wishes = [wish(n, 0.02 * n) for n in range(10)]

    async def go():
        return await drive(wishes, SlowWay(10), 10.0, lambda n: None)

    records = asyncio.run(go())
    assert [record.at_s for record in records] == [0.02 * n for n in range(10)]
    assert all(record.status == "finished" for record in records)
    assert records[0].ttft_ms >= 180  # it waited for the last one


def test_what_is_not_answered_in_time_is_left_and_told():
    async def go():
        way = SlowWay(3)
        return await drive([wish(0, 0.0), wish(1, 0.0)], way, 0.05, lambda n: None), way.left

    records, left = asyncio.run(go())
    assert [record.status for record in records] == ["unanswered"] * 2
    assert sorted(left) == ["r0", "r1"]


def test_refused_failed_and_unanswered_requests_are_promises_not_kept():
    good = Record("a", "realtime", 0.0, 4, 4, tokens_s=[0.1, 0.2], end_s=0.2, output_tokens=2)
    good.status = "finished"
    late = Record("b", "realtime", 0.0, 4, 4, tokens_s=[9.0], end_s=9.0, output_tokens=1)
    late.status = "finished"
    refused, failed = Record("c", "realtime", 0.0, 4, 4), Record("d", "realtime", 0.0, 4, 4)
    refused.fail("overloaded", 7.0)
    failed.fail("numeric_error")
    asked = [good, late, refused, failed, Record("e", "realtime", 0.0, 4, 4)]
    *_, everybody = rows_of(asked, TABLE, seconds=10.0)
    counts = {"finished": 2, "refused": 1, "failed": 1, "unanswered": 1, "requests": 5}
    assert counts == {name: everybody[name] for name in counts}
    assert (everybody["attainment"], everybody["goodput_rps"]) == (0.2, 0.1)


def test_a_percentile_is_a_value_that_occurred():
    assert [percentile(range(1, 101), p) for p in (50, 90, 99)] == [50, 90, 99]
    assert (percentile([7.0], 99), percentile([], 50)) == (7.0, None)


@pytest.fixture
def lockstep(monkeypatch, capfd, settings):
    """Runs `lockstep bench serve`; gives exit code, stdout, stderr."""
    monkeypatch.setenv("LOCKSTEP_REDIS_URL", settings.redis_url)
    monkeypatch.setenv("LOCKSTEP_PORT", str(settings.port))
    monkeypatch.setenv("LOCKSTEP_MODEL", settings.model)
    read_settings.cache_clear()

    def call(*arguments):
        code = run(["bench", "serve", *arguments])
        return code, *capfd.readouterr()

    yield call
    read_settings.cache_clear()


@pytest.mark.parametrize("via", ["http", "redis"])
def test_a_node_is_loaded_and_every_request_is_told(lockstep, node, tmp_path, via):
    log, report = tmp_path / "log.jsonl", tmp_path / "report.html"
    files = ["--log", str(log), "--report", str(report)]
    code, out, _ = lockstep(*FAST, "--via", via, "--json", *files)
    found = json.loads(out)
    assert (code, found["bench"], found["via"]) == (0, "serve", via)
    *classes, everybody = found["rows"]
    assert everybody["sla"] == "all"
    assert everybody["requests"] == everybody["finished"] == sum(r["requests"] for r in classes)
    assert all(everybody[f"ttft_ms_p{p}"] > 0 for p in (50, 90, 99))
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert len(lines) == everybody["requests"]
    assert {line["status"] for line in lines} == {"finished"}
    assert {line["pool"] for line in lines} == {"cpu"}
    assert report.read_text().count("<svg") == 2


def test_a_door_that_asks_for_a_key_is_shown_ours(lockstep, node, door, monkeypatch):
    secret = add_key(door.desk.store, Key(id="bench"))
    monkeypatch.setattr(gate, "KEYS_AGE_S", 0.0)
    code, _, said = lockstep(*FAST)
    assert code == 1 and "LOCKSTEP_API_KEY" in said
    monkeypatch.setenv("LOCKSTEP_API_KEY", secret)
    read_settings.cache_clear()
    assert lockstep(*FAST, "--json")[0] == 0


def test_a_failed_answer_is_told_with_its_code(lockstep, node, tmp_path):
    node.play = Play(end=EndEvent(status="failed", code="overloaded", error="wait"))
    log = tmp_path / "log.jsonl"
    for via in ("http", "redis"):
        code, _, _ = lockstep(*FAST, "--via", via, "--log", str(log))
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        assert (code, {line["status"] for line in lines}) == (0, {"refused"})


def test_without_a_node_it_says_how_to_start_one(lockstep):
    code, out, err = lockstep(*FAST)
    assert (code, out) == (1, "")
    assert "make start" in err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--via", "fax"], "--via: must be http or redis, got 'fax'"),
        (["--arrivals", "all"], "--arrivals: must be poisson or gamma, got 'all'"),
        (["--rate", "0"], "'--rate': Input should be greater than or equal to 0.001"),
        (["--rate", "inf"], "--rate: at most 1,000,000 requests in all --seconds"),
        (["--seconds", "1e9"], "--rate: at most 1,000,000 requests in all --seconds"),
        (["--log", "/nowhere/x.jsonl"], "--log: must be a file in a folder that exists"),
        (["--report", "/"], "--report: must be a file in a folder that exists, got /"),
    ],
)
def test_wrong_usage_is_2_and_said_before_anything_runs(lockstep, arguments, sentence):
    code, out, err = lockstep(*arguments)
    assert (code, out) == (2, "")
    assert sentence in err


def test_tables_fit_a_terminal_of_80_columns(lockstep, node, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = lockstep(*FAST)
    heads = [line.split() for line in out.splitlines() if line.split()[:1] == ["class"]]
    assert heads == [[*HEADS.values()], ["class", *MEASURES.values()]]


def test_a_mix_of_unknown_classes_is_refused(lockstep, node):
    code, _, err = lockstep("--mix", "urgent=1")
    assert (code, "of realtime, standard, batch" in err) == (2, True)
