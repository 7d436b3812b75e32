"""What idle sessions on the disk cost: start-up, memory and listing of the KV tier.

    python tests/bench/bench_sessions.py [--sessions 10000] [--json]

The sessions are those of `lockstep bench kv`; beside what that measures, here stand a start
without the ledger, and a collection. What is measured runs in a process of its own.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from ingest.command.bench.kv.idle import make

ROOT = Path(__file__).parents[2]
MEASURE = """
import json, resource, sys, time
from pathlib import Path
def resident_bytes():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()
begin = time.perf_counter()
from kv_tier.budget import TierLimits
from kv_tier.tier import KvTier
import_s = time.perf_counter() - begin
before = resident_bytes()
begin = time.perf_counter()
tier = KvTier(Path(sys.argv[1]), TierLimits())
open_s = time.perf_counter() - begin
stats = tier.stats()
resident = resident_bytes() - before
begin = time.perf_counter()
first = tier.ledger.list_sessions(limit=100)
page_s = time.perf_counter() - begin
rows, begin = first, time.perf_counter()
count = 0
while rows:
    count += len(rows)
    rows = tier.ledger.list_sessions(limit=1000, after=(rows[-1].tenant, rows[-1].session_id))
list_s = time.perf_counter() - begin
begin = time.perf_counter()
tier.collect()
collect_s = time.perf_counter() - begin
print(json.dumps(dict(sessions=count, import_s=import_s, open_s=open_s, resident_bytes=resident,
                      page_of_100_s=page_s, list_all_s=list_s, collect_s=collect_s)))
"""


def measured(root: Path) -> dict[str, float]:
    """By a process that has just begun."""
    command = [sys.executable, "-c", MEASURE, str(root)]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return dict(json.loads(answer.stdout))


def rows(num_sessions: int, folder: Path) -> list[dict[str, Any]]:
    """One row for a node with its ledger, one for a node that has lost it."""
    empty, full = folder / "empty", folder / "full"
    make(empty, 1, lambda done: None)
    make(full, num_sessions, lambda done: None)
    idle = measured(empty)["resident_bytes"]
    found = []
    for case in ("start", "start without a ledger"):
        if case != "start":
            (full / "ledger.sqlite").unlink()
        row = measured(full)
        more = row["resident_bytes"] - idle
        found.append({"case": case, **row, "bytes_per_session": more / num_sessions})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sessions", type=int, default=10_000)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        found = rows(asked.sessions, Path(folder))
        making_s = time.perf_counter() - begin
    if asked.json:
        print(json.dumps({"rows": found}))
        return
    print(f"{asked.sessions} idle sessions (made and measured in {making_s:.0f} s)")
    for row in found:
        print(", ".join(f"{k} {v:.4g}" if k != "case" else f"{v}:" for k, v in row.items()))


if __name__ == "__main__":
    main()
