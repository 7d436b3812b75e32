"""lockstep plan: rows that scripts can read, a plot, and one sentence for whatever is wrong."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress

import psutil
import pytest

from ingest.command.main import run
from ingest.command.plan import time_left
from tests.ingest.conftest import ROOT
from tests.node.running_node import wait_for

QUICK = ("--workload", "short", "--seeds", "1", "--minutes", "1", "--requests", "20")


@pytest.fixture
def lockstep(capfd):
    """Runs a command line; gives exit code, stdout, stderr."""

    def call(*arguments):
        code = run(arguments)
        out, err = capfd.readouterr()
        return code, out, err

    return call


def test_json_is_one_object_with_rows_and_the_plot_is_there(lockstep, tmp_path):
    plot = tmp_path / "plan.svg"
    code, out, err = lockstep(
        "plan", *QUICK, "--system", "gpu,priority-gpu", "--json", "--plot", str(plot)
    )
    assert code == 0, err
    rows = json.loads(out)["rows"]
    assert [(row["system"], row["workload"], row["context"]) for row in rows] == [
        ("gpu", "short", 1024),
        ("priority-gpu", "short", 1024),
    ]
    assert all(row["low_rps"] <= row["capacity_rps"] <= row["high_rps"] for row in rows)
    assert all(row["capacity_rps"] > 0 for row in rows)
    assert "<svg" in plot.read_text()


def test_a_trace_takes_the_place_of_a_workload(lockstep, tmp_path):
    trace = tmp_path / "trace.csv"
    lines = [f"2023-11-16 18:15:{second:02d}.5,300,20" for second in range(60)]
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(lines) + "\n")
    code, out, err = lockstep(
        *("plan", "--trace", str(trace), "--system", "gpu", "--seeds", "1"),
        *("--minutes", "1", "--requests", "20", "--context", "1024"),
    )
    assert code == 0, err
    assert "trace on L40S" in out and "gpu" in out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--workload", "chats"), "--workload: must be of chat, agents"),
        (("--system", "tpu"), "--system: must be of gpu, gpu+cpu"),
        (("--plot", "plan.pdf"), "--plot: must end with .svg or .png"),
        (("--plot", "/no/such/folder/plan.svg"), "--plot: must be a file in a folder that exists"),
        (("--hardware", ""), "--hardware: must be a name, a TOML file or `this`"),
        (("--hardware", "nowhere.toml"), "--hardware: nowhere.toml: cannot be read"),
        (("--trace", "nowhere.csv"), "--trace: nowhere.csv: cannot be read"),
        (("--context", "many"), "--context: must be numbers"),
        (("--context", "²"), "--context: must be numbers"),
        (("--context", "9999999"), "--context: L40S + EPYC 7R13"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(lockstep, arguments, sentence):
    code, out, err = lockstep("plan", *arguments)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1 and sentence in err


@pytest.mark.parametrize("option", [("--minutes", "inf"), ("--minutes", "1e12"), ("--seeds", "0")])
def test_an_option_without_measure_is_refused_before_anything_is_simulated(lockstep, option):
    code, out, err = lockstep("plan", *option)
    assert (code, out) == (2, "") and option[0] in err and "Traceback" not in err


@pytest.mark.parametrize(
    ("elapsed_s", "done", "told"),
    [(10, 1, ", about 50 s left"), (60, 1, ", about 5 min left"), (60, 6, "")],
)
def test_what_is_to_come_is_told(elapsed_s, done, told):
    assert time_left(elapsed_s, done, 6) == told


def living(group: int) -> list[psutil.Process]:
    """Processes of a group that run, but for those that are dead and not yet buried."""
    found = []
    for process in psutil.process_iter(["status"]):
        with suppress(ProcessLookupError):
            if process.info["status"] != "zombie" and os.getpgid(process.pid) == group:
                found.append(process)
    return found


def test_ctrl_c_ends_it_at_once_and_leaves_nothing():
    """Its processes hear Ctrl-C, too; a second one, of who waits no longer, came to semaphores."""
    cases = ("--workload", "short", "--seeds", "100", "--minutes", "1", "--requests", "20")
    plan = subprocess.Popen(
        [sys.executable, "-m", "ingest.command.main", "plan", *cases, "--system", "gpu"],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    first = plan.stderr.readline()
    os.killpg(plan.pid, signal.SIGINT)
    out, err = plan.communicate(timeout=60)
    wait_for(lambda: not living(plan.pid), "all of its processes are gone")
    assert first.startswith("1/") and " left" in first
    assert (plan.returncode, out) == (130, "")
    assert "Traceback" not in err and "leaked" not in err
