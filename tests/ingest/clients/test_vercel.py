"""The Vercel AI SDK, run by node: its own tests (vercel/ai.test.mjs) say what failed."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "vercel"
INSTALLED = Path(os.environ.get("LOCKSTEP_NPM", FOLDER))  # where node_modules lies


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node")
def test_the_vercel_ai_sdk(base_url):
    if not (INSTALLED / "node_modules").is_dir():
        pytest.skip(f"npm has installed nothing in {INSTALLED}")
    if INSTALLED != FOLDER:
        shutil.copy(FOLDER / "ai.test.mjs", INSTALLED)
    done = subprocess.run(
        ["node", "--test", "ai.test.mjs"], cwd=INSTALLED, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
