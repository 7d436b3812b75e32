"""Requests are as the workload says: lengths, shares, intervals, conversations that grow."""

from itertools import pairwise
from statistics import mean, median, pstdev

import pytest

from router.simulator.azure import BadTrace, read_trace, replay
from router.simulator.hardware import BadHardware, hardware_of, load, names
from router.simulator.workload import load_workloads, next_turn, wishes

WORKLOADS, TABLE = load_workloads()


def intervals(found):
    times = [wish.arrival_ms for wish in found]
    return [later - earlier for earlier, later in pairwise(times)]


def test_arrivals_have_the_rate_and_their_variation():
    poisson = intervals(wishes(WORKLOADS["chat"], 8192, 5.0, seed=1, horizon_s=1000))
    bursts = intervals(wishes(WORKLOADS["burst"], 4096, 5.0, seed=1, horizon_s=1000))
    assert mean(poisson) == pytest.approx(200, rel=0.05)
    assert mean(bursts) == pytest.approx(200, rel=0.08)
    assert pstdev(poisson) / mean(poisson) == pytest.approx(1.0, abs=0.08)
    assert pstdev(bursts) / mean(bursts) == pytest.approx(1.41, abs=0.15)


def test_lengths_have_their_median_and_their_end():
    found = wishes(WORKLOADS["code"], 8192, 5.0, seed=3, horizon_s=1000)
    assert median(wish.prompt for wish in found) == pytest.approx(1500, rel=0.1)
    assert median(wish.output for wish in found) == pytest.approx(13, abs=2)
    assert max(wish.prompt for wish in found) == 7424


def test_a_client_that_sets_no_max_tokens_may_fill_the_context():
    found = wishes(WORKLOADS["chat"], 32768, 2.0, seed=3, horizon_s=100)
    assert {wish.prompt + wish.max_tokens for wish in found} == {32768}


def test_another_rate_has_the_same_requests_at_other_times():
    slow = wishes(WORKLOADS["burst"], 4096, 1.0, seed=9, horizon_s=200)
    fast = wishes(WORKLOADS["burst"], 4096, 2.0, seed=9, horizon_s=100)
    assert [(w.prompt, w.output) for w in slow] == [(w.prompt, w.output) for w in fast]
    assert [w.arrival_ms for w in slow] == pytest.approx([2 * w.arrival_ms for w in fast])


def test_a_conversation_grows_by_what_was_said_and_ends_within_the_context():
    found = wishes(WORKLOADS["agents"], 32768, 3.0, seed=5, horizon_s=200)
    assert {wish.sla for wish in found} == {"realtime", "standard", "batch"}
    for wish in found:
        turn, number = wish, 0
        while (following := next_turn(turn, end_ms=turn.arrival_ms + 1)) is not None:
            assert following.history == turn.prompt + turn.output < following.prompt
            turn, number = following, number + 1
            assert turn.prompt + turn.max_tokens <= 32768
            assert turn.id == f"{wish.session}-{number}"


TRACE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:15:46.6805900,374,44
2024-05-10 00:00:00.009930+00:00,2162,5
"""


def write(path, text):
    path.write_text(text)
    return path


def test_azure_files_are_read_by_time_with_seven_digits_and_zones(tmp_path):
    early = TRACE.splitlines()[:3]
    rows = read_trace(write(tmp_path / "a.csv", "\n".join(early) + "\n"))
    assert [(row.prompt, row.output) for row in rows] == [(374, 44), (396, 109)]
    assert [row.at_s for row in rows] == pytest.approx([0.0, 4.314579])
    assert len(read_trace(write(tmp_path / "b.csv", TRACE))) == 3


def test_burstgpt_files_are_read_without_what_failed(tmp_path):
    text = (
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,ChatGPT,472,18,490,Conversation log\n45,ChatGPT,1087,230,1317,Conversation log\n"
        "50,ChatGPT,300,0,300,Conversation log\n"
    )
    assert len(read_trace(write(tmp_path / "b.csv", text))) == 2


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "line 1 must name the columns"),
        ("a,b,c\n1,2,3\n", "line 1 must name the columns"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\nnever,1,2\n", "line 2 is no request"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n5,1\n", "line 2 is no request"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n5,1,2\n", "fewer than two"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path, text, sentence):
    with pytest.raises(BadTrace, match=sentence):
        read_trace(write(tmp_path / "t.csv", text))


def test_a_replayed_trace_has_the_rate_and_the_shares(tmp_path):
    lines = [f"2023-11-16 18:{m:02d}:{s:02d}.0,300,20" for m in range(5) for s in range(60)]
    head = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    rows = read_trace(write(tmp_path / "t.csv", head + "\n".join(lines)))
    found = replay(rows, 2.0, 4096, 1000.0, {"realtime": 0.25, "batch": 0.75})
    assert len(found) == pytest.approx(2000, abs=2)
    assert sum(wish.sla == "batch" for wish in found) == pytest.approx(1500, abs=2)


def test_every_description_of_hardware_can_be_read():
    assert {"published", "two-cores"} <= set(names())
    for name in names():
        assert set(load(name).pools) == {"gpu", "cpu"}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [({"block_bytes": "many"}, "block_bytes"), ({"gpu": {}}, "fixed_ms"), ({"cpu": 3}, "a table")],
)
def test_a_wrong_description_names_the_key(change, sentence):
    node = dict.fromkeys(
        ("context", "state_bytes", "weight_bytes", "read_bytes_per_s", "write_bytes_per_s"), 1
    )
    with pytest.raises(BadHardware, match=sentence):
        hardware_of("mine", {"block_bytes": 1, **node, "cpu": {}, **change})


def test_a_node_without_processors_is_none():
    node = dict.fromkeys(
        ("context", "state_bytes", "weight_bytes", "read_bytes_per_s", "write_bytes_per_s"), 1
    )
    with pytest.raises(BadHardware, match="neither"):
        hardware_of("mine", {"block_bytes": 1, **node})
