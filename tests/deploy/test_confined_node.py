"""A node works under what the systemd unit forbids it: system calls, and memory that is code."""

import ctypes.util
import shutil
import sys

import httpx
import pytest

from tests.node.running_node import ROOT, Node

UNIT = ROOT / "deploy" / "systemd" / "lockstep@.service"
NEEDS = "systemd-analyze and libseccomp"


class ConfinedNode(Node):
    wrapper = (sys.executable, "-m", "tests.deploy.confined", str(UNIT))


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None or ctypes.util.find_library("seccomp") is None,
    reason=f"needs {NEEDS}",
)
def test_a_confined_node_answers_keeps_a_session_and_stops(tmp_path, model_home, free_port):
    (tmp_path / "models").symlink_to(model_home / "models")
    node = ConfinedNode(tmp_path, free_port(), free_port(), LOCKSTEP_THREADS="1")
    node.start()
    try:
        asked = {"model": "smollm2-135m", "session_id": "s", "max_tokens": 8, "temperature": 0}
        for content in ("What is gravity?", "Who found it?"):
            messages = [{"role": "user", "content": content}]
            answer = httpx.post(
                f"{node.url}/v1/chat/completions", json=asked | {"messages": messages}, timeout=60
            )
            assert answer.status_code == 200, answer.text
        assert answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
        assert node.interrupt() < 10
        assert node.left_over() == []
        assert list(tmp_path.glob("kv/objects/*/*.block")) or list(tmp_path.glob("kv/sessions/*/*"))
    finally:
        node.kill()
    said = node.tail()
    assert "PermissionError" not in said and "Operation not permitted" not in said
