"""Schemathesis against a whole node: what the OpenAPI document allows, and what it does not.

    make fuzz-api EXAMPLES=100 SEED=1

Starts a node with a tiny model on free ports and a new home, then the schemathesis command (of an
environment of its own) with the checks of api_checks.py. Exit status: that of schemathesis, or 1 if
a process of the node died or a traceback is in its log. The last figures stand in README.md.
"""

import argparse
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # run as a program, from anywhere

from tests.node.running_node import PROGRAMS, Node  # noqa: E402  needs the line above
from workers.model import catalog  # noqa: E402

MODEL = "tiny"
ENDLESS = "/events$"  # streams that end only with their request


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def started(home: Path) -> Node:
    catalog.add(ROOT / "tests/golden/tiny_llama.Q4_0.gguf", MODEL, home, None)
    node = Node(
        home, free_port(), free_port(), LOCKSTEP_MODEL=MODEL, LOCKSTEP_KV_MIB="64",
        LOCKSTEP_KV_DISK_MIB="512", LOCKSTEP_GPU="off",
    )  # fmt: skip
    node.start()
    return node


def run(node: Node, schemathesis: str, examples: int, seed: int) -> int:
    command = [
        schemathesis, "run", f"{node.url}/openapi.json", "--checks", "is_an_answer",
        "--max-examples", str(examples), "--seed", str(seed), "--exclude-path-regex", ENDLESS,
        "--request-timeout", "60", "--phases", "examples,coverage,fuzzing", "--no-color",
        "--generation-database", "none", "--suppress-health-check", "all",
    ]  # fmt: skip
    hooks = {"SCHEMATHESIS_HOOKS": "tests.security.api_checks", "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, env=os.environ | hooks, cwd=ROOT, check=False).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--schemathesis", default="schemathesis", help="its command")
    parser.add_argument("--examples", type=int, default=100, help="of each operation at most")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="fuzz-api-"))
    node = started(home)
    try:
        before = {name: node.program(name).pid for name in PROGRAMS}
        code = run(node, asked.schemathesis, asked.examples, asked.seed)
        died = [name for name in PROGRAMS if node.program(name).pid != before[name]]
        crashed = node.log.read_text().count("Traceback")
        print(f"programs that died: {died or 'none'}; tracebacks in the node's log: {crashed}")
        if crashed:
            print(node.log.read_text()[-4000:])
        return code or int(bool(died or crashed))
    finally:
        node.kill()
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
