"""`lockstep model` adds, lists, shows and removes models, and refuses in one sentence."""

import json
import os
from pathlib import Path

import pytest

from ingest.command.main import run
from workers.settings import settings

GGUF = Path(__file__).parents[2] / "golden" / "tiny_llama.Q4_0.gguf"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCKSTEP_HOME", str(tmp_path))
    monkeypatch.setenv("LOCKSTEP_MODEL", "tiny")
    settings.cache_clear()
    yield tmp_path
    settings.cache_clear()


def asked(capsys, *arguments):
    """Exit code, and JSON of stdout."""
    code = run(["model", *arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def said(capsys, *arguments):
    """Exit code, stdout, stderr."""
    code = run(["model", *arguments])
    return code, *capsys.readouterr()


def test_a_model_is_added_listed_shown_and_removed(capsys):
    code, added = asked(capsys, "add", str(GGUF), "--name", "tiny")
    assert (code, added["name"], added["vocab_size"]) == (0, "tiny", 512)
    code, listed = asked(capsys, "list")
    assert listed == {"models": [added], "served": "tiny"}
    code, shown = asked(capsys, "show", "tiny")
    assert (code, shown) == (0, added)
    assert asked(capsys, "remove", "tiny") == (0, {"removed": "tiny"})
    assert asked(capsys, "list")[1]["models"] == []


def test_the_name_is_the_files_unless_another_is_given(capsys):
    assert asked(capsys, "add", str(GGUF))[1]["name"] == "tiny_llama.Q4_0"


def test_people_see_sizes_and_what_is_lost(capsys):
    code, out, err = said(capsys, "add", str(GGUF), "--name", "tiny")
    assert code == 0
    assert "Q4_0" in out and "q4_0" in out and "none" in out
    assert "LOCKSTEP_MODEL=tiny make start" in out
    assert err == ""  # a bar is for terminals
    assert "*  tiny" in said(capsys, "list")[1]
    assert "weights_digest" in said(capsys, "show", "tiny")[1]
    assert said(capsys, "remove", "tiny")[1] == "tiny is gone\n"
    assert said(capsys, "list")[1].startswith("no models")


def test_a_check_reads_every_weight(capsys, home):
    run(["model", "add", str(GGUF), "--name", "tiny"])
    assert "every weight is as it was packed" in said(capsys, "show", "tiny", "--check")[1]
    pack = home / "models" / "tiny" / "weights.pack"
    with pack.open("r+b") as file:
        file.seek(-4096, os.SEEK_END)
        file.write(b"\xff")
    code, _, err = said(capsys, "show", "tiny", "--check")
    assert code == 1
    assert "the weights are damaged" in err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("add", __file__), "is not a GGUF file"),
        (("add", "nowhere.gguf"), "nowhere.gguf cannot be read"),
        (("add", str(GGUF), "--name", "../x"), "model name '../x'"),
        (("show", "big"), "'big' is not here"),
        (("remove", "big"), "'big' is not here"),
    ],
)
def test_a_refusal_is_one_sentence_and_exit_code_1(capsys, home, arguments, sentence):
    code, out, err = said(capsys, *arguments)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert sentence in err
    assert not list((home / "models").glob("*/*"))
