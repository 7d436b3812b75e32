"""lockstep bench: whole, on its smallest plan. No speed is asserted anywhere."""

import json

import pytest

from ingest.command.bench.cases import Case, prompt
from ingest.command.bench.cpu import Plan, groups, rates, row
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
    assert Case(phase="prefill", sessions=1, context=100).num_tokens == 100
    assert Case(phase="decode", sessions=4, context=100, steps=8).num_tokens == 32


def test_a_row_is_medians_and_their_ratio():
    case = Case(phase="decode", sessions=2, context=64, steps=8)
    work = {"layer_macs": 900, "head_macs": 100, "weight_bytes": 4000, "kv_bytes": 2}
    found = row("135M", 2, case, work, [1.0, 2.0, 0.5], [4.0, 2.0, 8.0])
    assert (found["ours"], found["peer"], found["ratio"]) == (16.0, 4.0, 4.0)
    assert (found["ours_runs"], found["peer_runs"]) == ([16.0, 8.0, 32.0], [4.0, 8.0, 2.0])
    alone = row("135M", 2, case, work, [1.0])
    assert (alone["peer"], alone["ratio"]) == (None, None)


def test_rates_count_multiply_adds_and_bytes():
    work = {
        "layer_macs": 9 * 10**9,
        "head_macs": 10**9,
        "weight_bytes": 10**9,
        "kv_bytes": 10**6,
    }
    decode = Case(phase="decode", sessions=10, context=100, steps=2)
    assert rates(decode, work, 4.0, 2) == {"gmacs_per_core": 25.0, "gb_per_s": 1.0}
    prefill = Case(phase="prefill", sessions=1, context=1000)
    assert rates(prefill, work, 10.0, 1) == {"gmacs_per_core": 900.1, "gb_per_s": 0.2}


def test_a_plan_has_each_case_once_and_long_contexts_in_processes_of_their_own():
    plan = Plan([1, 2], ["prefill", "extend", "decode", "in_c"], [1, 10], [], 512, None, 5)
    cases = plan.cases("1.5B", 1)
    assert len(set(cases)) == len(cases)
    assert [(c.context, c.sessions) for c in cases if c.phase == "decode"] == [
        (128, 1), (128, 10), (4096, 1), (4096, 10), (8192, 1), (32000, 1),
    ]  # fmt: skip
    found = [{c.context for c in group} for group in groups(cases)]
    assert found == [{512, 128}, {4096}, {8192}, {32000}]
    assert {c.context for c in cases if not c.beside_peer and c.phase != "in_c"} == {8192, 32000}


def test_whole_long_prompts_are_prefilled_with_the_most_threads_alone():
    plan = Plan([1, 2], ["prefill", "extend"], [1], [], 512, None, 5)
    assert [(c.phase, c.context) for c in plan.cases("135M-default", 1)] == [("prefill", 512)]
    plan_of_decode = Plan([1, 2], ["decode"], [1], [8000], 512, None, 5)
    beside = [plan_of_decode.cases("135M-default", n)[0].beside_peer for n in (1, 2)]
    assert beside == [False, True]
    assert [(c.phase, c.context) for c in plan.cases("135M-default", 2)] == [
        ("prefill", 512), ("extend", 8000), ("prefill", 8000),
    ]  # fmt: skip


def test_a_model_of_one_kernel_has_few_sessions_and_many_sessions_few_steps():
    plan = Plan([1], ["decode"], [1, 2, 10, 32], [], 512, None, 5)
    assert [c.sessions for c in plan.cases("135M-q8_0", 1)] == [1, 10]
    assert [c.steps for c in plan.cases("135M", 1)] == [8, 8, 4, 2]


def test_bench_cpu_prints_a_row_for_each_case(lockstep):
    size = ["--sessions", "1,3", "--context", "8", "--prompt-tokens", "8", "--steps", "2"]
    size += ["--model", "135M-default", "--threads", "1", "--rounds", "2", "--no-peer"]
    code, out, _ = lockstep("bench", "cpu", "--json", *size)
    found = json.loads(out)
    assert code == 0
    assert [(r["case"], r["sessions"], r["context"]) for r in found["rows"]] == [
        ("prefill", 1, 8),
        ("decode", 1, 8),
        ("decode", 3, 8),
        ("in_c", 1, 128),
    ]
    assert all(len(r["ours_runs"]) == 2 and r["ours"] > 0 for r in found["rows"])
    assert {(r["model"], r["threads"]) for r in found["rows"]} == {("135M-default", 1)}
    assert found["peer"] is None
    assert found["limits"].keys() == {"read_gb_per_s", "maddubs_gmacs_per_core"}
    assert 0 < found["rows"][-1]["ours"] < 1
    assert all(r["resident_mib"] > 90 for r in found["rows"])  # 96 MB of weights are read


def test_bench_node_prints_latencies_and_costs(lockstep):
    """It starts a node of its own and leaves nothing running."""
    size = ["--requests", "16", "--tokens", "16", "--sessions", "4", "--step-ms", "0"]
    code, out, _ = lockstep("bench", "node", "--json", *size)
    found = json.loads(out)
    assert code == 0
    latencies = [r for r in found["rows"] if r["case"] == "latency"]
    assert [r["path"] for r in latencies] == ["http", "http stream", "redis"]
    costs = [r["process"] for r in found["rows"] if r["case"] == "cpu"]
    assert costs == ["store", "router", "pool", "api", "sum"]


def test_bench_queue_prints_rates_beside_rqs_and_what_a_job_costs(lockstep):
    """Everything that was sent has finished, by us and by RQ."""
    code, out, _ = lockstep("bench", "queue", "--json", "--jobs", "20", "--rounds", "1")
    found = json.loads(out)
    assert code == 0
    ours, simple, forking = found["rows"]
    assert [r["case"] for r in (simple, forking)] == ["RQ SimpleWorker", "RQ Worker, forking"]
    assert all(r["jobs_per_s"] > 0 for r in found["rows"])
    assert ours["commands"] > ours["scripts"] > 0 and ours["store_us"] > 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["cpu", "--sessions", "0"],
        ["cpu", "--sessions", "1,x"],
        ["cpu", "--rounds", "0"],
        ["cpu", "--case", "speed"],
        ["node", "--tokens", "1"],
        ["queue", "--jobs", "0"],
        ["gpt"],
    ],
)
def test_wrong_usage_is_2(lockstep, arguments):
    code, out, err = lockstep("bench", *arguments)
    assert (code, out) == (2, "")
    assert err and "Traceback" not in err
