"""`lockstep top` shows what a look at the node says: once, as JSON, in any height."""

import json
from io import StringIO

from rich.console import Console

from ingest.command.main import run
from ingest.command.top_screen import Speeds, bar, screen
from ingest.dashboard.look import look
from tests.ingest.conftest import MODEL
from tests.ingest.stub_node import StubNode
from workers.cost import CostModel

NOTE = "no NVIDIA driver: libcuda.so.1 is missing, and more is said than a line has room for"


def shown(told, width=120, **how) -> str:
    console = Console(width=width, record=True, file=StringIO())
    console.print(screen(told, Speeds(), **how))
    return console.export_text()


def test_an_empty_store_is_shown_too(store, tiny_home):
    text = shown(look(store, tiny_home))
    assert "no pool reports" in text and "no router runs" in text


def test_once_and_json_say_the_same(store, text, capfd):
    with StubNode(store, text) as node:
        node.report(
            running=3, capacity=16, free_blocks=16, tokens_per_s=12.5, step_ms=80.0, batch=3
        )
        assert run(["top", "--once"]) == 0
        screen_text = capfd.readouterr().out
        assert run(["top", "--json"]) == 0
        told = json.loads(capfd.readouterr().out)
    assert (told["pools"][0]["running"], told["model"]) == (3, MODEL)
    assert "12.5 tok/s" in screen_text and "3/16" in screen_text and "48/64" in screen_text
    assert "realtime" in screen_text


def test_a_low_terminal_shows_fewer_jobs(store, tiny_home):
    job = {
        "full_id": "j",
        "sla": "batch",
        "plan": "cpu",
        "tokens": 3,
        "reason": "x",
        "status": "running",
    }
    told = {**look(store, tiny_home), "running": [job] * 20}
    assert shown(told, height=60).count("batch") > shown(told, height=24).count("batch")


def test_a_line_of_80_holds_a_pool_a_class_and_why_a_pool_is_not_there(store, text, tiny_home):
    with StubNode(store, text) as node:
        node.report(
            running=13, capacity=16, free_blocks=1, total_blocks=4096, step_ms=1234.5,
            tokens_per_s=1234.5, cost=CostModel(fixed_ms=3.0, error=0.07), note=NOTE,
        )  # fmt: skip
        lines = shown(look(store, tiny_home), width=80).splitlines()
    [pool] = [line for line in lines if line.startswith("cpu ") and "13/16" in line]
    assert "4095/4096" in pool and "±7%" in pool and "1.2 s" in pool
    [note] = [line for line in lines if line.startswith("cpu: ")]
    assert note.startswith("cpu: no NVIDIA driver: libcuda.so.1 is missing")
    [realtime] = [line for line in lines if line.startswith("realtime")]
    assert "100 ms a token" in realtime and "(99 %)" in realtime


def test_bars_are_as_long_as_their_part():
    assert (bar(0, 16), bar(8, 16), bar(99, 16), bar(1, 0)) == (
        *("░" * 6, "█" * 3 + "░" * 3, "█" * 6, "░" * 6),
    )


def test_speeds_remember():
    speeds = Speeds()
    assert [speeds.line(value) for value in (0.0, 4.0, 8.0)] == [" ", " █", " ▄█"]
