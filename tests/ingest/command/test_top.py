"""`lockstep top` shows what a look at the node says: once, as JSON, in any height."""

import json
from io import StringIO

from rich.console import Console

from ingest.command.main import run
from ingest.command.top_screen import Speeds, bar, screen
from ingest.dashboard.look import look
from tests.ingest.conftest import MODEL
from tests.ingest.stub_node import StubNode


def shown(told, **how) -> str:
    console = Console(width=120, record=True, file=StringIO())
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


def test_bars_are_as_long_as_their_part():
    assert (bar(0, 16), bar(8, 16), bar(99, 16), bar(1, 0)) == (
        *("░" * 10, "█" * 5 + "░" * 5, "█" * 10, "░" * 10),
    )


def test_speeds_remember():
    speeds = Speeds()
    assert [speeds.line(value) for value in (0.0, 4.0, 8.0)] == [" ", " █", " ▄█"]
