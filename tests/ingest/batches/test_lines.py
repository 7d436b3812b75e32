"""The input of a batch is looked through with little memory, whatever it holds."""

import io
import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from ingest.batches.lines import LINES_MAX, Line, look_through, numbered, parse
from ingest.batches.record import Fault, window_s
from router.entry import BODY_BYTES_MAX
from tests.ingest.batches.conftest import CHAT, chat_line, jsonl


@given(st.binary(max_size=200))
def test_whatever_a_line_holds_is_a_request_or_a_fault(raw):
    assert isinstance(parse(raw, 7, CHAT), Line | Fault)


def test_a_line_that_would_need_much_memory_is_a_fault():
    bomb = b'{"custom_id":"a","method":"POST","url":"x","body":{"a":' + b"[]," * 100_000 + b"0}}"
    assert parse(bomb, 1, "x").code == "invalid_json_line"


@given(st.lists(st.sampled_from([b"", b" ", b"a", b"b" * 20]), max_size=8))
def test_lines_are_numbered_as_an_editor_does(lines):
    found = list(numbered(io.BytesIO(b"\n".join(lines))))
    assert [(n, raw.rstrip(b"\n")) for n, raw in found] == [
        (n, line) for n, line in enumerate(lines, 1) if line.strip()
    ]


def test_a_line_that_is_too_long_is_a_fault_of_that_line_alone(tmp_path):
    path = tmp_path / "in"
    path.write_bytes(b"x" * (2 * BODY_BYTES_MAX + 100) + b"\n" + jsonl([chat_line("a")]))
    total, model, faults = look_through(path, CHAT)
    assert (total, model) == (2, "tiny")
    assert [(fault.code, fault.line) for fault in faults] == [("line_too_long", 1)]


def test_more_lines_than_may_be(tmp_path):
    path = tmp_path / "in"
    line = '{"custom_id":"%d","method":"POST","url":"' + CHAT + '","body":{}}'
    path.write_text("\n".join(line % n for n in range(LINES_MAX + 1)))
    (fault,) = look_through(path, CHAT)[2]
    assert (fault.code, fault.line) == ("too_many_lines", LINES_MAX + 1)


def test_a_large_file_needs_little_memory(tmp_path):
    path = tmp_path / "in"
    filler = "x" * 2000
    path.write_bytes(jsonl(chat_line(f"{n}", filler=filler) for n in range(10_000)))
    tracemalloc.start()
    try:
        assert look_through(path, CHAT)[0] == 10_000
        assert tracemalloc.get_traced_memory()[1] < path.stat().st_size / 8
    finally:
        tracemalloc.stop()


def test_completion_windows():
    assert window_s("24h") == 86_400 == window_s("1d")
    assert [window_s(text) for text in ("", "24", "0h", "31d", "-1h", "1w", "1h ")] == [None] * 7
