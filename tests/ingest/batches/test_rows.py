"""Rows survive what happens to files: torn ends, bad sectors, full disks."""

import json
import os

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from ingest.batches.rows import Rows, row_id, whole_rows_end

BATCH = "batch_" + "0" * 24


def row(number: int) -> dict:
    usage = {"prompt_tokens": 3, "completion_tokens": 2}
    body = {"text": "é\n" * number, "usage": usage}
    response = {"status_code": 200, "request_id": "r", "body": body}
    return {"id": row_id(BATCH, number), "custom_id": "c", "response": response, "error": None}


def filled(path, count: int):
    rows = Rows(path)
    for number in range(1, count + 1):
        assert rows.add(row(number)).usage.counts == (3, 0, 2)
    rows.close()
    return path.read_bytes()


@hypothesis_settings(max_examples=40)
@given(st.data())
def test_what_is_torn_anywhere_is_cut_off_and_the_rest_goes_on(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("rows") / "file"
    raw = filled(path, 4)
    cut = data.draw(st.integers(0, len(raw)))
    tail = data.draw(st.sampled_from([b"", b"\0" * 9, b"{}\n", b'{"id": "x-0"}\n', b"\xff\n"]))
    path.write_bytes(raw[:cut] + tail)
    rows = Rows(path)
    there = [found.line for found in rows.recover()]
    assert there == list(range(1, 1 + raw[:cut].count(b"\n")))
    rows.add(row(9))
    rows.close()
    lines = path.read_text().splitlines()
    assert [json.loads(line)["id"] for line in lines] == [row_id(BATCH, n) for n in (*there, 9)]


@hypothesis_settings(max_examples=40)
@given(end=st.integers(0, 200_000))
def test_a_growing_file_is_read_to_its_last_whole_row(tmp_path_factory, end):
    path = tmp_path_factory.mktemp("rows") / "file"
    raw = (b"x" * 99_999 + b"\n" + b"y" * 70_000 + b"\n" + b"z" * 29_999)[:end]
    path.write_bytes(raw)
    assert whole_rows_end(path) == raw.rfind(b"\n") + 1


def test_a_row_that_the_disk_does_not_take_is_not_there(tmp_path, monkeypatch):
    path = tmp_path / "file"
    filled(path, 2)
    rows = Rows(path)
    assert len(list(rows.recover())) == 2
    whole = path.read_bytes()
    write = os.write

    def full(descriptor: int, raw: bytes) -> int:
        write(descriptor, raw[:10])
        raise OSError(28, "no space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="no space"):
        rows.add(row(3))
    assert path.read_bytes() == whole
    monkeypatch.undo()
    rows.add(row(3))
    assert path.read_bytes().startswith(whole) and path.read_bytes().count(b"\n") == 3
