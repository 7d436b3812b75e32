"""Golden files with a few things wrong are refused in one line, or become a model; never more.

A small helping of what tests/slow/fuzz_loader.py throws by the ten thousand (make test-slow); the
last result of that stands in tests/bench/RESULTS.md.
"""

import random
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.slow.fuzz_loader import GOLDEN, damaged, outcome
from workers.model.gguf_scan import scan

ROOT = Path(__file__).parents[3]
FILES = ("tiny_qwen35.Q4_0.gguf", "tiny_qwen2.Q4_0.gguf", "tiny_gemma3.Q4_0.gguf")


@settings(max_examples=60)
@given(name=st.sampled_from(FILES), seed=st.integers(0, 2**32))
def test_a_damaged_file_is_refused_or_harmless(tmp_path_factory, name, seed):
    path = GOLDEN / name
    home = tmp_path_factory.mktemp("home")
    bad = home / "bad.gguf"
    bad.write_bytes(damaged(random.Random(seed), path.read_bytes(), scan(path).end))
    assert outcome(home, bad) in ("refused", "made")


@pytest.mark.slow
def test_ten_thousand_damaged_files():
    """Each within 1 GiB and 20 s of processor time; the input at which it fails is named."""
    command = [sys.executable, str(ROOT / "tests" / "slow" / "fuzz_loader.py")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
