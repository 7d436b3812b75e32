"""What a soak looks at: the memory of each process, keys, files; and whether they stay the same.

Flat means: a straight line through the resident memory after the warm-up rises by less than 1 MiB
in ten minutes, the p99 of the last third is at most 1.2 times that of the first, and nothing of a
request is left in the store once its result has expired.
"""

import os
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ingest.command.bench.own_node import Node
from ingest.command.bench.serve.summary import percentile
from ingest.command.bench.soak_load import Record
from ingest.command.failure import Failure
from workers.store import Store

MIB: Final = 2**20
RESTART_LOOKS: Final = 20
GROWTH_MOST: Final = 1.0  # MiB in ten minutes
SLOWER_MOST: Final = 1.2
STATUS: Final = {"resident": "VmRSS", "anonymous": "RssAnon", "threads": "Threads"}
OF_REQUESTS: Final = (  # families of keys that go with a request, or with its result
    *("job", "tokens", "webhook", "session", "session:waiting"),
    *("rq:job", "rq:results", "rq:execution", "rq:executions"),
)


@dataclass(frozen=True, slots=True)
class Sample:
    """One look. processes: by name, KiB and counts; store: used memory in bytes, keys"""

    at_s: float
    processes: Mapping[str, Mapping[str, int]]
    store_bytes: int
    keys: int
    files: int
    file_bytes: int


def sample(node: Node, store: Store, at_s: float) -> Sample:
    found = {name: process_now(kept_by(p.pid)) for name, p in node.processes.items()}
    info: dict[str, Any] = store.redis.info("memory")
    sizes = file_sizes(node.home / "kv")
    keys = int(store.redis.dbsize())
    return Sample(at_s, found, info["used_memory"], keys, len(sizes), sum(sizes))


def kept_by(keeper: int) -> int:
    """The process behind a keeper, as soon as it runs. Raises Failure."""
    for _ in range(RESTART_LOOKS):
        children = Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()
        if children and "VmRSS" in Path(f"/proc/{children[0]}/status").read_text():
            return int(children[0])
        time.sleep(1.0)
    raise Failure(f"bench soak: a process did not come back within {RESTART_LOOKS} s")


def process_now(pid: int) -> dict[str, int]:
    """KiB and counts of one process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    status = dict(line.split(":", 1) for line in lines if ":" in line)
    found = {name: int(status[key].split()[0]) for name, key in STATUS.items()}
    return {**found, "pid": pid, "open_files": len(list(Path(f"/proc/{pid}/fd").iterdir()))}


def file_sizes(folder: Path) -> list[int]:
    """Of the KV tier's files; what goes meanwhile is left out."""
    sizes = []
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                sizes.append(os.stat(os.path.join(place, name)).st_size)
    return sizes


def growth(samples: Sequence[Sample], process: str, what: str = "resident") -> float:
    """MiB in ten minutes: the slope of the line of least squares; what: in KiB.

    Of a process that was restarted: since then.
    """
    pid = samples[-1].processes[process]["pid"]
    here = [one for one in samples if one.processes[process]["pid"] == pid]
    xs = [one.at_s / 600 for one in here]
    return slope(xs, [one.processes[process][what] / 1024 for one in here])


def slope(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Of the line of least squares; 0.0 of fewer than two points."""
    if len(xs) < 2:
        return 0.0
    x0, y0 = sum(xs) / len(xs), sum(ys) / len(ys)
    across = sum((x - x0) ** 2 for x in xs)
    return sum((x - x0) * (y - y0) for x, y in zip(xs, ys, strict=True)) / across


def thirds(records: Sequence[Record], begin_s: float, end_s: float) -> list[dict[str, Any]]:
    """Latency of what was sent in each third of [begin_s, end_s) and finished, in ms."""
    rows = []
    for number in range(3):
        low = begin_s + number * (end_s - begin_s) / 3
        high = low + (end_s - begin_s) / 3
        here = [r.seconds * 1000 for r in records if low <= r.at_s < high and r.end == "finished"]
        row: dict[str, Any] = {"third": number + 1, "jobs": len(here)}
        row["jobs_per_s"] = round(len(here) / (high - low), 1)
        rows.append(row | {f"p{p}_ms": round(percentile(here, p) or 0.0) for p in (50, 99)})
    return rows


def families(store: Store) -> dict[str, int]:
    """How many keys there are of each kind; what names a request, session or worker is left out."""
    found: Counter[str] = Counter()
    prefix = store.keys.prefix + ":"
    for raw in store.redis.scan_iter(count=1000):
        found[family(raw.decode().removeprefix(prefix))] += 1
    return dict(found)


def family(name: str) -> str:
    """`rq:job` of `rq:job:soak-1`."""
    match = re.match(r"(rq:)?[a-z_]+", name)
    kind = match.group() if match else name
    return f"{kind}:waiting" if name.endswith(":waiting") and kind == "session" else kind


def rows_of(samples: Sequence[Sample]) -> list[dict[str, Any]]:
    """One row a process: its memory when the warm-up was over, and in the end."""
    first, last = samples[0].processes, samples[-1].processes
    return [
        {
            "process": name,
            "resident_mib": [round(one[name]["resident"] / 1024, 1) for one in (first, last)],
            "growth_mib_per_10min": round(growth(samples, name), 2),
            "anonymous_growth": round(growth(samples, name, "anonymous"), 2),
            "restarts": len({one.processes[name]["pid"] for one in samples}) - 1,
            "threads": [one[name]["threads"] for one in (first, last)],
            "open_files": [one[name]["open_files"] for one in (first, last)],
        }
        for name in first
    ]


def verdict(
    rows: Sequence[Mapping[str, Any]],
    parts: Sequence[Mapping[str, Any]],
    left: Mapping[str, int],
    sessions: int,
) -> dict[str, Any]:
    """What was asked for, and whether it is so.

    left: families of keys in the end   sessions: as many go on, and have a key each
    """
    slower = parts[-1]["p99_ms"] / max(1, parts[0]["p99_ms"])
    allowed = {"session": sessions}
    leaked = {n: left[n] for n in OF_REQUESTS if left.get(n, 0) > allowed.get(n, 0)}
    growing = [row["process"] for row in rows if row["growth_mib_per_10min"] >= GROWTH_MOST]
    return {
        "memory_flat": not growing,
        "growing": growing,
        "p99_last_to_first": round(slower, 2),
        "latency_flat": slower <= SLOWER_MOST,
        "leaked": leaked,
    }
