"""The examples of docs/examples, run as they stand there, beside a running node."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "docs/examples"
PATIENCE_S = 120


@pytest.fixture
def example(node):
    """Runs an example with the node's settings; gives what it prints."""

    def run(name, *arguments):
        done = subprocess.run(
            [sys.executable, EXAMPLES / name, *arguments],
            env={**node.environment, "PYTHONPATH": str(EXAMPLES.parents[1])},
            capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return run


def test_a_result_comes_by_webhook(example, free_port):
    accepted, came = example("webhook.py", "Once upon a time", str(free_port()))
    assert came.startswith(f"job.finished {accepted.split()[1]} ")


def test_an_agents_later_turns_are_mostly_known(example):
    lines = [line for line in example("agent.py") if line.startswith("    prompt: ")]
    numbers = [[int(word) for word in line.split() if word.isdigit()] for line in lines]
    (_, _), (second, of_second), (third, of_third) = numbers
    assert of_second > second / 2 and of_third > third / 2 and third > second


def test_what_is_promoted_streams_and_the_rest_ends_too(example):
    told, *_, first, second = example("promote.py")
    assert told.split(": ")[1] in ("promoted, was batch", "ended, was batch")
    assert first.endswith(" finished") and second.endswith(" finished")


def test_a_batch_is_answered_line_by_line(example):
    *_, progress, first, second, third = example("batch.py")
    assert progress == "completed: 3 of 3"
    assert {line.split()[0] for line in (first, second, third)} == {"Paris", "Rome", "Athens"}


def test_every_example_is_run_by_a_test():
    run = {"webhook.py", "agent.py", "promote.py", "batch.py"}
    assert {path.name for path in EXAMPLES.glob("*.py")} == run
