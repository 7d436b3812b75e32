"""lockstep bench: whole, on its smallest plan. No speed is asserted anywhere."""

import json

import pytest

from ingest.command.bench.cases import Case, prompt
from ingest.command.bench.cpu import Plan, row
from ingest.command.main import run
from workers.settings import settings


@pytest.fixture
def lockstep(monkeypatch, model_home, capfd):
    """Runs a command line over the default model; gives exit code, stdout, stderr."""
    monkeypatch.setenv("LOCKSTEP_HOME", str(model_home))
    settings.cache_clear()

    def call(*arguments):
        code = run(arguments)
        return code, *capfd.readouterr()

    yield call
    settings.cache_clear()


def test_sessions_have_prompts_of_their_own():
    prompts = [prompt(session, 50, 49152) for session in range(3)]
    assert len({tuple(ids) for ids in prompts}) == 3
    assert prompts == [prompt(session, 50, 49152) for session in range(3)]
    assert all(0 <= token < 300 for token in prompt(0, 500, 300))


def test_a_case_counts_the_tokens_that_its_time_was_spent_on():
    assert Case(phase="prefill", sessions=4, prompt_tokens=100).num_tokens == 400
    assert Case(phase="decode", sessions=4, prompt_tokens=100, steps=8).num_tokens == 32


def test_a_row_is_medians_and_their_ratio():
    case = Case(phase="decode", sessions=2, prompt_tokens=64, steps=8)
    found = row(case, [10.0, 30.0, 20.0], [5.0, 8.0, 80.0])
    assert (found["ours"], found["peer"], found["ratio"]) == (20.0, 8.0, 2.5)
    assert (found["ours_runs"], found["peer_runs"]) == ([10.0, 30.0, 20.0], [5.0, 8.0, 80.0])
    assert "peer" not in row(case, [10.0])


def test_a_plan_leaves_room_for_the_tokens_of_early_sessions(tmp_path):
    plan = Plan(tmp_path, tmp_path, 1, [1, 16], 256, 64, 32, 1)
    assert [case.sessions for case in plan.cases()] == [1, 1, 16, 16]
    assert plan.max_tokens >= 256 + 16


def test_bench_cpu_prints_a_row_for_each_case(lockstep):
    size = ["--sessions", "1,3", "--rounds", "2", "--prompt-tokens", "8", "--steps", "2"]
    code, out, _ = lockstep("bench", "cpu", "--json", "--no-peer", "--threads", "1", *size)
    found = json.loads(out)
    assert code == 0
    assert [(r["case"], r["sessions"]) for r in found["rows"]] == [
        ("prefill", 1),
        ("decode", 1),
        ("prefill", 3),
        ("decode", 3),
    ]
    assert all(len(r["ours_runs"]) == 2 and r["ours"] > 0 for r in found["rows"])
    assert (found["model"], found["threads"], found["peer"]) == ("smollm2-135m", 1, None)


def test_bench_serve_prints_latencies_and_costs(lockstep):
    """It starts a node of its own and leaves nothing running."""
    size = ["--requests", "16", "--tokens", "16", "--sessions", "4", "--step-ms", "0"]
    code, out, _ = lockstep("bench", "serve", "--json", *size)
    found = json.loads(out)
    assert code == 0
    latencies = [r for r in found["rows"] if r["case"] == "latency"]
    assert [r["path"] for r in latencies] == ["http", "http stream", "redis"]
    costs = [r["process"] for r in found["rows"] if r["case"] == "cpu"]
    assert costs == ["store", "router", "pool", "api", "sum"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["cpu", "--sessions", "0"],
        ["cpu", "--sessions", "1,x"],
        ["cpu", "--rounds", "0"],
        ["serve", "--tokens", "1"],
        ["gpt"],
    ],
)
def test_wrong_usage_is_2(lockstep, arguments):
    code, out, err = lockstep("bench", *arguments)
    assert (code, out) == (2, "")
    assert err and "Traceback" not in err
