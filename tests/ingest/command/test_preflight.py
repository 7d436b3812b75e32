"""What is missing on a machine is said in one sentence that says what to do."""

import ast
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ingest.command import preflight

ROOT = Path(__file__).parents[3]
ZEN = "processor : 0\nflags\t\t: fpu sse2 avx2 fma f16c bmi2\n"
OLD = "processor : 0\nflags\t\t: fpu sse2 avx f16c\n"


def only(found) -> str:
    """The one sentence."""
    (sentence,) = found
    assert sentence.endswith(".")
    assert "\n" not in sentence
    return sentence


def test_this_machine_can_build():
    assert list(preflight.problems()) == []


def test_it_runs_alone_and_says_nothing_when_all_is_well(tmp_path):
    script = ROOT / "ingest" / "command" / "preflight.py"
    done = subprocess.run([sys.executable, "-I", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_an_old_python_can_read_it():
    """3.6 knows no `annotations` of __future__, 3.8 no tuple[int, ...]: both end in a traceback."""
    source = (ROOT / "ingest" / "command" / "preflight.py").read_text()
    nodes = list(ast.walk(ast.parse(source, feature_version=(3, 6))))
    assert "__future__" not in [n.module for n in nodes if isinstance(n, ast.ImportFrom)]
    types = [n.returns for n in nodes if isinstance(n, ast.FunctionDef)]
    types += [n.annotation for n in nodes if isinstance(n, ast.arg)]
    assert not [t for t in types if isinstance(t, ast.Subscript)]


def test_without_a_compiler_it_fails_with_one_line(tmp_path):
    script = ROOT / "ingest" / "command" / "preflight.py"
    done = subprocess.run(
        [sys.executable, "-I", script],
        capture_output=True, text=True, env=os.environ | {"CC": "no-such-compiler"},
    )  # fmt: skip
    assert done.returncode == 1
    assert "no-such-compiler" in done.stderr and len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("version", [(3, 8, 1), (3, 10, 14), (2, 7, 18)])
def test_a_python_that_is_too_old(version):
    said = only(preflight.python_problems(version))
    assert "3.11" in said and f"{version[0]}.{version[1]}" in said and "PYTHON=" in said


def test_a_python_without_headers(monkeypatch, tmp_path):
    monkeypatch.setattr(preflight.sysconfig, "get_path", lambda _: str(tmp_path))
    assert "python3.12-dev" in only(preflight.python_problems((3, 12, 0)))


@pytest.mark.parametrize("module", ["venv", "ensurepip"])
def test_a_python_without_venv(monkeypatch, module):
    monkeypatch.setitem(sys.modules, module, None)
    assert "-venv" in only(preflight.python_problems((3, 11)))


def test_a_compiler_without_headers(tmp_path):
    compiler = tmp_path / "cc"
    compiler.write_text("#!/bin/sh\nexit 1\n")
    compiler.chmod(0o755)
    assert "libc6-dev" in only(preflight.compiler_problems(str(compiler)))


@pytest.mark.parametrize(
    "machine, cpuinfo, word",
    [("x86_64", OLD, "AVX2, FMA"), ("x86_64", "", "AVX2, FMA, F16C"), ("aarch64", ZEN, "aarch64")],
)
def test_a_processor_that_is_too_old(machine, cpuinfo, word):
    assert word in only(preflight.cpu_problems(machine, cpuinfo))


def test_a_processor_that_will_do():
    assert list(preflight.cpu_problems("x86_64", ZEN)) == []


def test_a_full_disk_names_the_folder_that_exists(tmp_path):
    said = only(preflight.disk_problems(tmp_path / "not" / "yet", 1 << 40))
    assert str(tmp_path) in said and "not/yet" not in said
    assert list(preflight.disk_problems(tmp_path, 1)) == []


def test_a_port_in_use():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = only(preflight.port_problems("127.0.0.1", port, "LOCKSTEP_PORT"))
    assert str(port) in said and "LOCKSTEP_PORT" in said
    assert list(preflight.port_problems("127.0.0.1", port, "LOCKSTEP_PORT")) == []


def test_an_address_that_is_not_ours():
    said = only(preflight.port_problems("no.such.host.invalid", 8000, "LOCKSTEP_PORT"))
    assert "LOCKSTEP_HOST" in said
