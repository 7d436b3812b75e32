"""What a node costs that has nothing to do: `python tests/bench/idle.py`.

Starts a node as `make start` does (after the build), in a home of its own unless told otherwise,
and prints: seconds from the start to the ready line, cold (model fetched and packed) and warm; the
share of one core that all its processes take over --seconds; the sum of their PSS; seconds from
Ctrl-C to the end of the last one.
"""

import argparse
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


PORTS = {"LOCKSTEP_PORT": str(free_port()), "LOCKSTEP_STORE_PORT": str(free_port())}


def start_node(home: Path) -> tuple["subprocess.Popen[str]", float]:
    """The node, ready, and the seconds that took."""
    began = time.monotonic()
    node = subprocess.Popen(
        [sys.executable, "-m", "ingest.command.start"], cwd=ROOT, text=True,
        env={**os.environ, "LOCKSTEP_HOME": str(home), **PORTS},
        stdout=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    assert node.stdout is not None
    for line in node.stdout:
        if line.startswith("Lockstep is ready"):
            return node, time.monotonic() - began
    raise SystemExit(f"the node did not start: exit code {node.wait()}")


def ask(home: Path) -> None:
    """One request, so that the weights are in memory: a node that never worked is no node."""
    lockstep = [sys.executable, "-m", "ingest.command.main", "enqueue", "Hello", "--wait"]
    subprocess.run(
        [*lockstep, "--max-tokens", "20"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL,
        env={**os.environ, "LOCKSTEP_HOME": str(home), **PORTS},
    )  # fmt: skip


def stop_node(node: "subprocess.Popen[str]") -> float:
    """Ctrl-C, as a terminal sends it; the seconds until all is gone."""
    pids = tree(node.pid)
    began = time.monotonic()
    os.killpg(node.pid, signal.SIGINT)
    node.communicate(timeout=30)
    assert node.returncode == 0, node.returncode
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        time.sleep(0.01)
    return time.monotonic() - began


def tree(root: int) -> list[int]:
    """The process and all that it started, as far as it or they still live."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append(int(path.parent.name))
    found, todo = [], [root]
    while todo:
        pid = todo.pop()
        found.append(pid)
        todo += children.get(pid, [])
    return found


def cpu_s(pid: int) -> float:
    """Seconds of user and system time so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def pss_mib(pid: int) -> float:
    """Memory, with shared pages divided among those who share them."""
    found = re.search(r"^Pss:\s+(\d+)", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    assert found is not None, pid
    return int(found[1]) / 1024


def name_of(pid: int) -> str:
    words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    return " ".join(Path(words[0]).name.split() + words[1:])[:60]


def idle(root: int, seconds: float) -> list[dict[str, Any]]:
    """One row a process: share of a core in percent, PSS in MiB."""
    before = {pid: cpu_s(pid) for pid in tree(root)}
    began = time.monotonic()
    time.sleep(seconds)
    took_s = time.monotonic() - began
    assert sorted(before) == sorted(tree(root)), "a process came or went"
    return [
        {
            "process": name_of(pid),
            "cpu_percent": round(100 * (cpu_s(pid) - cpu) / took_s, 2),
            "pss_mib": round(pss_mib(pid), 1),
        }
        for pid, cpu in before.items()
    ]


def measure(home: Path, seconds: float, settle_s: float) -> dict[str, Any]:
    is_cold = not (home / "models").exists()
    node, first_s = start_node(home)
    first_stop_s = stop_node(node)
    node, warm_s = start_node(home)
    try:
        ask(home)
        time.sleep(settle_s)
        rows = idle(node.pid, seconds)
    finally:
        warm_stop_s = stop_node(node)
    return {
        "rows": rows,
        "cold_start_s" if is_cold else "first_start_s": round(first_s, 1),
        "warm_start_s": round(warm_s, 1),
        "stop_s": [round(first_stop_s, 1), round(warm_stop_s, 1)],
        "cpu_percent": round(sum(row["cpu_percent"] for row in rows), 2),
        "pss_mib": round(sum(row["pss_mib"] for row in rows), 1),
        "seconds": seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--home", type=Path, help="LOCKSTEP_HOME; absent: a new one")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--settle", type=float, default=10)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=ROOT / "build") as folder:
        home = options.home or Path(folder)
        print(json.dumps(measure(home.resolve(), options.seconds, options.settle), indent=1))


if __name__ == "__main__":
    main()
