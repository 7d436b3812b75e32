"""The README's five-minute tour, run as it stands there against a node of its own."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PATIENCE_S = 120


def blocks_of(page: str, section: str = "") -> list[tuple[str, str]]:
    """(language, text) of each block that a reader runs, of a page or of one of its sections."""
    text = (ROOT / page).read_text()
    if section:
        text = text.split(f"## {section}\n")[1].split("\n## ")[0]
    return re.findall(r"```(sh|python)\n(.*?)```", text, re.DOTALL)


LOCKSTEP = f'#!/bin/sh\nexec {sys.executable} -m ingest.command.main "$@"\n'
REDIS_CLI = f"""#!{sys.executable}
import sys
from redis import Redis
assert sys.argv[1] == "-p"
print(Redis(port=int(sys.argv[2]), decode_responses=True).execute_command(*sys.argv[3:]))
"""


class Tour:
    """A folder with the node's home as var/, and what the reader has on the path."""

    def __init__(self, node, folder: Path, ports: dict[str, str]) -> None:
        self.folder, self.ports = folder, ports
        (folder / "var").symlink_to(node.home)
        (folder / "bin").mkdir()
        for name, script in (("lockstep", LOCKSTEP), ("redis-cli", REDIS_CLI)):
            (folder / "bin" / name).write_text(script)
            (folder / "bin" / name).chmod(0o755)
        path = f"{folder / 'bin'}:{node.environment['PATH']}"
        self.environment = node.environment | {"PATH": path, "PYTHONUNBUFFERED": "1"}

    def run(self, language: str, text: str) -> str:
        """What the block prints; a block that names a file is saved as that file instead."""
        for written, used in self.ports.items():
            text = text.replace(written, used)
        name = re.match(r"# (\w+\.py)\n", text)
        if name:
            (self.folder / name[1]).write_text(text)
            return ""
        command = ["bash", "-euc", text] if language == "sh" else [sys.executable, "-c", text]
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment,
            capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
        return done.stdout


@pytest.fixture
def tour(make_node, tmp_path, free_port):
    node = make_node(LOCKSTEP_WEBHOOK_ALLOW="127.0.0.0/8", LOCKSTEP_KEY_PREFIX="lockstep")
    port = node.environment["LOCKSTEP_PORT"]
    store_port = node.environment["LOCKSTEP_STORE_PORT"]
    yield Tour(node, tmp_path, {"8000": port, "6390": store_port, "8099": str(free_port())})
    node.interrupt()


@pytest.mark.skipif(shutil.which("curl") is None, reason="the tour begins with curl")
def test_the_tour_goes_as_it_is_written(tour):
    asked, streamed, queued, _, posted, verified = [
        tour.run(*block) for block in blocks_of("README.md", "Five minutes")
    ]
    assert json.loads(asked)["choices"][0]["message"]["content"]
    assert streamed.strip()
    assert "Paris" in queued and "finished" in queued
    assert posted.splitlines()[-1].startswith("job.finished tour-2 ")
    assert verified


@pytest.mark.skipif(shutil.which("curl") is None, reason="sessions begin with curl")
def test_sessions_go_as_they_are_written(tour):
    asked, managed = [tour.run(*block) for block in blocks_of("docs/sessions.md")]
    first, second = [json.loads(line) for line in asked.replace("}{", "}\n{").splitlines()]
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    kept = first["usage"]["total_tokens"] - 1
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= kept
    assert all(word in managed for word in ("tour", "smollm2-135m", "0 damaged", "pinned"))
    assert '"deleted":true' in managed.replace(" ", "")


def test_classes_go_as_they_are_written(tour):
    [told] = [tour.run(*block) for block in blocks_of("docs/classes.md")]
    assert "promoted" in told and "realtime" in told
    assert all(word in told for word in ("first token in 2.0 s", "end in 60 min", "smollm2-135m"))
