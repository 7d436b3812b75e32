"""Runs a command beside a running node: its address is in LOCKSTEP_BASE_URL.

    python -m tests.ingest.clients.serve COMMAND ...

The node is one of its own: a new home with the default model, free ports, no promises to keep.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.node.running_node import Node
from workers.model import catalog

ROOT = Path(__file__).parents[3]
NOTHING = {
    "realtime": {"ttft_ms": 0, "tpot_ms": 0},
    "standard": {"ttft_ms": 0, "tpot_ms": 0},
    "batch": {"deadline_ms": 0},
}


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def main() -> int:
    """The exit status of the command."""
    models = ROOT / "build" / "test-home"
    catalog.ensure(models, "smollm2-135m", progress=None)
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        (home / "models").symlink_to(models / "models")
        node = Node(home, free_port(), free_port(), LOCKSTEP_SLA=json.dumps(NOTHING))
        try:
            node.start()
            environment = {**os.environ, "LOCKSTEP_BASE_URL": node.url}
            return subprocess.run(sys.argv[1:], env=environment).returncode
        finally:
            node.kill()


if __name__ == "__main__":
    sys.exit(main())
