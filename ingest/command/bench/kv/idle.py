"""What idle sessions on the disk cost a process: start-up, memory, listing.

python -m ingest.command.bench.kv.idle FOLDER      measures, in a process that has just begun
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, Final

from ingest.command.bench.kv.plan import (
    GOAL_SESSION_BYTES,
    GOAL_START_S,
    Plan,
    Progress,
    Row,
    row,
)
from kv_tier import files as operations
from kv_tier.budget import TierLimits
from kv_tier.files import OsFiles
from kv_tier.manifest import Manifest
from kv_tier.objects import Source
from kv_tier.tier import KvTier, wall_ms

NUM_TOKENS: Final = 513  # of each: two blocks, and the last token
FINGERPRINT: Final = bytes(32)
PAYLOAD: Final = bytes(1000)  # no disk is filled to measure this
PAGE_BYTES: Final = 4096


class Quick(OsFiles):
    """What is made here need not outlast a power cut."""

    def perform(self, path: Path, operation: Any, *args: Any, **named: Any) -> Any:
        if operation in (operations.sync, operations.sync_folder):
            return None
        return super().perform(path, operation, *args, **named)


def make(root: Path, num_sessions: int, progress: Callable[[int], None]) -> None:
    """So many sessions that nobody talks to, each with two blocks of its own."""
    tier = KvTier(root, TierLimits(), files=Quick())
    for number in range(num_sessions):
        make_one(tier, number)
        progress(number + 1)
    tier.close()


def make_one(tier: KvTier, number: int) -> None:
    name, now_ms = f"idle-{number}", wall_ms()
    token_ids = (*divmod(number, 30_000), *range(NUM_TOKENS - 2))
    blocks = tuple(tier.chain("default", FINGERPRINT).block_keys(token_ids))
    sources = [Source(key, "block", 256, (PAYLOAD,), FINGERPRINT, "default") for key in blocks]
    tier.put("default", sources)
    tier.commit(
        Manifest(
            tenant="default",
            session_id=name,
            generation=1,
            fence=tier.sessions.take("default", name, 1),
            fingerprint=FINGERPRINT,
            model="bench",
            weights_digest="0" * 16,
            arithmetic_version="0",
            created_ms=now_ms,
            used_ms=now_ms,
            token_ids=token_ids,
            num_kv=NUM_TOKENS - 1,
            blocks=blocks,
        )
    )


def idle_rows(plan: Plan, folder: Path, progress: Progress) -> list[Row]:
    """Measured by processes that have just begun: with so many sessions, and with one."""
    make(folder / "one", 1, lambda done: None)
    make(
        folder / "many", plan.sessions, lambda done: progress("idle sessions", done, plan.sessions)
    )
    found: dict[str, list[dict[str, float]]] = {"one": [], "many": []}
    for number in range(plan.rounds):
        progress("idle", number, plan.rounds)
        for which, looks in found.items():
            looks.append(look(folder / which))
    many = {name: median(one[name] for one in found["many"]) for name in found["many"][0]}
    ram = many["ram_bytes"] - median(one["ram_bytes"] for one in found["one"])
    more = {"sessions": plan.sessions}
    each = max(0.0, ram / plan.sessions)
    return [
        row("idle start", "s", many["start_s"], GOAL_START_S, **more),
        row("idle RAM", "B/session", each, GOAL_SESSION_BYTES, **more),
        row("idle list 100", "ms", many["page_s"] * 1e3, **more),
        row("idle list all", "ms", many["list_s"] * 1e3, **more),
    ]


def look(folder: Path) -> dict[str, float]:
    command = [sys.executable, "-m", "ingest.command.bench.kv.idle", str(folder)]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(json.loads(answer.stdout))


def resident_bytes() -> int:
    """RAM of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES


def timed(work: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def main(folder: str) -> None:
    """Prints one JSON object: seconds, and bytes of RAM that opening and one look took."""
    before = resident_bytes()
    begin = time.perf_counter()
    tier = KvTier(Path(folder), TierLimits())
    tier.stats()
    start_s = time.perf_counter() - begin
    ram_bytes = resident_bytes() - before
    found = {
        "start_s": start_s,
        "ram_bytes": ram_bytes,
        "page_s": timed(lambda: tier.ledger.list_sessions(limit=100)),
        "list_s": timed(lambda: tier.ledger.list_sessions(limit=1 << 30)),
    }
    print(json.dumps(found))
    tier.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
