"""`lockstep bench kv`: resuming a session beside computing it again, and what keeping it costs.

    resume   time to first token of a prompt of so many tokens, of which the last 16 are new: KV in
             RAM, in the page cache, on the disk; beside the same prompt computed
    suspend  bytes a second from memory to synced files, beside the same files written plainly
    append   what a block of new tokens and the manifest of a turn take
    fork     a second session over the same KV
    step     a decode step while a session is written, and while none is
    idle     sessions that nobody uses: start-up, RAM and listing

`ours` of resume is the look for files, bringing them in and checking them, and what the first step
takes longer than with all KV in RAM. `ttft_ms` is all of it, the new tokens included. All are
medians of rounds; sides of a comparison take turns.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np

from ingest.command.bench import kv_idle
from ingest.command.bench.cases import STEP_TOKENS
from ingest.command.bench.kv_seat import BATCH, NEW_TOKENS, First, Seat, read_from_disk
from ingest.command.bench.models import Measured
from kernels.ops import BLOCK_TOKENS
from kv_tier.format import file_bytes
from kv_tier.manifest import Manifest
from kv_tier.tier import wall_ms
from workers.session.writer import step_aside

TOKENS: Final = {"1.5B": (32768,)}  # of the sessions, by model
TOKENS_ELSE: Final = (1024, 8192)
COMPUTED_MAX: Final = {"1.5B": 0}  # tokens up to which KV is computed; others: 8192
COMPUTED_ELSE: Final = 8192
GOAL_MS: Final = 20.0  # to resume from the page cache, and the bytes at:
GOAL_BYTES_PER_S: Final = 10e9
GOAL_SUSPEND: Final = 0.7  # of the disk's bandwidth
GOAL_START_S: Final = 2.0
GOAL_SESSION_BYTES: Final = 1024.0
PIECE_BYTES: Final = 1 << 20
STEPS: Final = 60  # of a round
FORKS: Final = 5  # of a round
TENANT: Final = "bench"

Progress = Callable[[str, int, int], None]
Row = dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """What is measured. tokens: of the sessions; empty: by model. sessions: idle ones."""

    cases: Sequence[str]
    tokens: Sequence[int]
    rounds: int
    threads: int
    sessions: int

    def tokens_of(self, model: str) -> Sequence[int]:
        return self.tokens or TOKENS.get(model, TOKENS_ELSE)


def measure(plan: Plan, model: Measured, home: Path, progress: Progress) -> dict[str, Any]:
    """The whole bench as one object with `rows`. home: a folder on the sessions' disk."""
    home.mkdir(parents=True, exist_ok=True)
    tokens = plan.tokens_of(model.name)
    rows: list[Row] = []
    with TemporaryDirectory(prefix="bench-kv-", dir=home) as folder:
        if set(plan.cases) - {"idle"}:
            progress("loading", 0, 0)
            seat = Seat(model.folder, Path(folder) / "kv", plan.threads, max(tokens))
            for num_tokens in tokens:
                rows += rows_of(plan, model.name, seat, num_tokens, progress)
            if "step" in plan.cases:
                rows += step_rows(plan, seat, max(tokens), progress)
            seat.tier.close()
        if "idle" in plan.cases:
            rows += idle_rows(plan, Path(folder), progress)
    return {"bench": "kv", "threads": plan.threads, "rounds": plan.rounds, "rows": rows}


def rows_of(plan: Plan, name: str, seat: Seat, num_tokens: int, progress: Progress) -> list[Row]:
    """Of sessions of so many tokens."""
    parts = {
        "resume": resume_rows,
        "suspend": suspend_rows,
        "append": append_rows,
        "fork": fork_rows,
    }
    rows: list[Row] = []
    for case, part in parts.items():
        if case in plan.cases:
            rows += part(plan, name, seat, num_tokens, progress)
            seat.clear()
    return [{"case": row.pop("case"), "model": name, "tokens": num_tokens, **row} for row in rows]


def row(case: str, unit: str, ours: float, goal: float | None = None, **more: Any) -> Row:
    """goal: absent where nothing was promised; ratio: ours to it."""
    ratio = None if not goal else round(ours / goal, 3)
    return {"case": case, **more, "unit": unit, "ours": rounded(ours), "goal": goal, "ratio": ratio}


def rounded(value: float) -> float:
    """Four digits that count."""
    return float(f"{value:.4g}")


# --- resume ---


def resume_rows(
    plan: Plan, name: str, seat: Seat, num_tokens: int, progress: Progress
) -> list[Row]:
    computed = num_tokens <= COMPUTED_MAX.get(name, COMPUTED_ELSE)
    progress(f"KV of {num_tokens} tokens", 0, 0)
    ids = seat.token_ids(num_tokens - NEW_TOKENS - 1)
    if computed:
        ids, num_kv = seat.computed(ids, TENANT)
    else:
        num_kv = len(ids) // BLOCK_TOKENS * BLOCK_TOKENS
        ids = ids[:num_kv]  # so that only what is new is computed
        seat.tier.put(TENANT, seat.made_up(ids, TENANT))
    num_bytes = sum(path.stat().st_size for path in seat.files())
    found: dict[str, list[First]] = {"ram": [], "page cache": [], "disk": []}
    read: list[int] = []
    for number in range(plan.rounds):
        progress(f"resume {num_tokens}", number, plan.rounds)
        seat.cool()
        before = read_from_disk()
        found["disk"].append(first_of(seat, ids, num_kv, 3 * number))
        read.append(read_from_disk() - before)
        seat.warm()
        engine = seat.engine()
        found["page cache"].append(
            seat.first_token(engine, turn(seat, ids, 3 * number + 1), TENANT, num_kv)
        )
        found["ram"].append(
            seat.first_token(engine, turn(seat, ids, 3 * number + 2), TENANT, num_kv)
        )
        del engine
    short = [one for firsts in found.values() for one in firsts if one.cached < num_kv]
    assert not short, (num_kv, short)
    recompute_s = (
        recomputed(plan, seat, ids, progress)
        if computed
        else estimated(seat, ids, num_kv, progress)
    )
    steps = {tier: median(one.seconds - one.fetch_s for one in all) for tier, all in found.items()}
    about: Row = {"kv": "computed" if computed else "made up", "bytes": num_bytes}
    about["prompt_tokens"] = len(ids) + NEW_TOKENS
    about["recompute"] = "measured" if computed else "estimated from chunks at 0, 1/2 and the end"
    rows = []
    for tier, firsts in found.items():
        ttft_s = median(one.seconds for one in firsts)
        goal = None
        if tier == "page cache":
            goal = rounded(GOAL_MS + num_bytes / GOAL_BYTES_PER_S * 1e3)
        more: Row = {"tier": tier, **about, "ttft_ms": rounded(ttft_s * 1e3)}
        more["recompute_ms"] = rounded(recompute_s * 1e3)
        more["times_faster"] = rounded(recompute_s / ttft_s)
        if tier == "disk":
            more["read_bytes"] = int(median(read))
        longer_s = max(0.0, steps[tier] - steps["ram"])
        ours_s = median(one.fetch_s for one in firsts) + longer_s
        rows.append(row("resume", "ms", ours_s * 1e3, goal, **more))
    return rows


def turn(seat: Seat, ids: Sequence[int], number: int) -> list[int]:
    """The log and a new message, another each time."""
    return [*ids, *seat.token_ids(NEW_TOKENS, 100 + number)]


def first_of(seat: Seat, ids: Sequence[int], num_kv: int, number: int) -> First:
    """By an engine that knows nothing."""
    return seat.first_token(seat.engine(), turn(seat, ids, number), TENANT, num_kv)


def recomputed(plan: Plan, seat: Seat, ids: Sequence[int], progress: Progress) -> float:
    """Seconds to the first token of the same turn, with no KV at all."""
    times = []
    for number in range(plan.rounds):
        progress(f"computing {len(ids)}", number, plan.rounds)
        times.append(first_of(seat, ids, 0, number).seconds)
    return median(times)


def estimated(seat: Seat, ids: Sequence[int], num_kv: int, progress: Progress) -> float:
    """The same, of chunks at the beginning, in the middle and at the end (Simpson's rule)."""
    engine = seat.engine()
    seat.first_token(engine, turn(seat, ids, 0), TENANT, num_kv)  # all of it is in RAM now
    times = []
    last = num_kv - STEP_TOKENS
    for number, begin in enumerate((0, last // 2 // BLOCK_TOKENS * BLOCK_TOKENS, last)):
        progress("a chunk", number, 3)
        chunk = [*ids[:begin], *seat.token_ids(STEP_TOKENS, 50 + number)]
        first = seat.first_token(engine, chunk, TENANT, begin)
        times.append(first.seconds - first.fetch_s)
    num_chunks = len(ids) / STEP_TOKENS
    return num_chunks * (times[0] + 4 * times[1] + times[2]) / 6


# --- writing ---


def suspend_rows(
    plan: Plan, name: str, seat: Seat, num_tokens: int, progress: Progress
) -> list[Row]:
    """A session's blocks written and synced, beside as many files of the same size."""
    ids = seat.token_ids(num_tokens)
    num_files = num_tokens // BLOCK_TOKENS
    size = file_bytes(seat.sizes.block_bytes)
    ours, disk = [], []
    for number in range(plan.rounds):
        progress(f"suspend {num_tokens}", number, plan.rounds)
        disk.append(write_plainly(seat.tier.root / "plain", num_files, size))
        sources = list(seat.made_up(ids, TENANT))
        begin = time.perf_counter()
        num_bytes = seat.tier.put(TENANT, sources)
        ours.append(time.perf_counter() - begin)
        assert num_bytes == num_files * size, (num_bytes, num_files, size)
        seat.clear()
    total = num_files * size
    speed, limit = total / median(ours) / 1e9, total / median(disk) / 1e9
    more = {"bytes": total, "disk_gb_per_s": rounded(limit), "share": rounded(speed / limit)}
    return [row("suspend", "GB/s", speed, rounded(GOAL_SUSPEND * limit), **more)]


def write_plainly(folder: Path, num_files: int, size: int) -> float:
    """Seconds for so many files: reserve, write by MiB, sync. They are taken away again."""
    folder.mkdir()
    piece = np.random.default_rng(0).bytes(PIECE_BYTES)
    begin = time.perf_counter()
    for number in range(num_files):
        fd = os.open(folder / str(number), os.O_WRONLY | os.O_CREAT, 0o600)
        os.posix_fallocate(fd, 0, size)
        for offset in range(0, size, PIECE_BYTES):
            os.pwrite(fd, piece[: size - offset], offset)
        os.fdatasync(fd)
        os.close(fd)
    seconds = time.perf_counter() - begin
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    return seconds


def append_rows(
    plan: Plan, name: str, seat: Seat, num_tokens: int, progress: Progress
) -> list[Row]:
    """A block of new tokens behind a session, and the manifest that names it, each synced."""
    ids = seat.token_ids(num_tokens + plan.rounds * BLOCK_TOKENS)
    sources = list(seat.made_up(ids, TENANT))
    base = num_tokens // BLOCK_TOKENS
    block_s, manifest_s = [], []
    fence = seat.tier.sessions.take(TENANT, "append", 0)
    for number in range(plan.rounds):
        progress(f"append {num_tokens}", number, plan.rounds)
        begin = time.perf_counter()
        seat.tier.put(TENANT, [sources[base + number]])
        block_s.append(time.perf_counter() - begin)
        kept = sources[: base + number + 1]
        manifest = manifest_of(seat, "append", ids, len(kept), number + 1, fence)
        begin = time.perf_counter()
        seat.tier.commit(manifest)
        manifest_s.append(time.perf_counter() - begin)
    seat.tier.drop(TENANT, "append")
    size = file_bytes(seat.sizes.block_bytes)
    bytes_per_token = size // BLOCK_TOKENS
    return [
        row("append", "us/token", median(block_s) / BLOCK_TOKENS * 1e6, bytes=bytes_per_token),
        row("manifest", "ms", median(manifest_s) * 1e3),
    ]


def manifest_of(
    seat: Seat, session_id: str, ids: Sequence[int], num_blocks: int, generation: int, fence: int
) -> Manifest:
    """A session whose first blocks have KV, and one more token."""
    num_kv = num_blocks * BLOCK_TOKENS
    chain = seat.tier.chain(TENANT, seat.sizes.fingerprint)
    now_ms = wall_ms()
    return Manifest(
        tenant=TENANT,
        session_id=session_id,
        generation=generation,
        fence=fence,
        fingerprint=seat.sizes.fingerprint,
        model=seat.text.name,
        weights_digest=seat.text.weights_digest,
        arithmetic_version="bench",
        created_ms=now_ms,
        used_ms=now_ms,
        token_ids=(*ids[:num_kv], 1),
        num_kv=num_kv,
        blocks=tuple(chain.block_keys(ids[:num_kv])),
    )


def fork_rows(plan: Plan, name: str, seat: Seat, num_tokens: int, progress: Progress) -> list[Row]:
    """A second session over the same KV. bytes: what it takes on the disk, KV and manifest."""
    ids = seat.token_ids(num_tokens)
    seat.tier.put(TENANT, seat.made_up(ids, TENANT))
    fence = seat.tier.sessions.take(TENANT, "origin", 0)
    seat.tier.commit(manifest_of(seat, "origin", ids, num_tokens // BLOCK_TOKENS, 1, fence))
    before, times = seat.tier.ledger.totals().num_bytes, []
    num_forks = plan.rounds * FORKS
    for number in range(num_forks):
        progress(f"fork {num_tokens}", number, num_forks)
        begin = time.perf_counter()
        seat.tier.fork(TENANT, "origin", f"fork-{number}")
        times.append(time.perf_counter() - begin)
    each = (seat.tier.ledger.totals().num_bytes - before) // num_forks
    for _, session_id in list(seat.tier.sessions.ids(TENANT)):
        seat.tier.drop(TENANT, session_id)
    return [row("fork", "ms", median(times) * 1e3, bytes=each)]


# --- steps while a session is written ---


def step_rows(plan: Plan, seat: Seat, num_tokens: int, progress: Progress) -> list[Row]:
    """p99 of a step, with a thread that writes a session over and over, as a pool's writer does."""
    engine = seat.engine()
    for number in range(BATCH):
        ids = seat.token_ids(64, number)
        engine.add(seat.request(ids, TENANT, max_tokens=2 * STEPS * plan.rounds + 64))
    for _ in range(16):
        engine.step()
    quiet: list[float] = []
    busy: list[float] = []
    written: list[float] = []
    for number in range(plan.rounds):
        progress("steps", number, plan.rounds)
        quiet += list(step_times(engine.step))
        with_writer = Suspending(seat, num_tokens)
        with_writer.start()
        busy += list(step_times(engine.step))
        written.append(with_writer.finish())
    p50, p99 = np.percentile(busy, (50, 99)).tolist()
    quiet_p50, quiet_p99 = np.percentile(quiet, (50, 99)).tolist()
    more = {"sessions": BATCH, "without_ms": rounded(quiet_p99), "p50_ms": rounded(p50)}
    more |= {"p50_without_ms": rounded(quiet_p50), "gb_per_s": rounded(median(written))}
    seat.clear()
    return [row("step p99", "ms", p99, rounded(quiet_p99), tokens=num_tokens, **more)]


def step_times(step: Callable[[], Any]) -> Iterator[float]:
    """Milliseconds."""
    for _ in range(STEPS):
        begin = time.perf_counter()
        step()
        yield (time.perf_counter() - begin) * 1e3


class Suspending(threading.Thread):
    """Writes a session, takes it away and writes it again, until it is told to finish."""

    def __init__(self, seat: Seat, num_tokens: int) -> None:
        super().__init__()
        self.seat = seat
        self.sources = list(seat.made_up(seat.token_ids(num_tokens, 7), TENANT))
        self.stopping = threading.Event()
        self.num_bytes, self.seconds = 0, 0.0

    def run(self) -> None:
        step_aside()
        begin = time.perf_counter()
        while not self.stopping.is_set():
            for source in self.sources:
                if not self.stopping.is_set():
                    self.num_bytes += self.seat.tier.put(TENANT, [source])
            for source in self.sources:
                self.seat.tier.objects.drop(source.kind, source.key)
        self.seconds = time.perf_counter() - begin

    def finish(self) -> float:
        """GB/s that were written meanwhile."""
        self.stopping.set()
        self.join()
        return self.num_bytes / self.seconds / 1e9


# --- idle sessions ---


def idle_rows(plan: Plan, folder: Path, progress: Progress) -> list[Row]:
    """Measured by processes that have just begun: with so many sessions, and with one."""
    kv_idle.make(folder / "one", 1, lambda done: None)
    kv_idle.make(
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
    command = [sys.executable, "-m", "ingest.command.bench.kv_idle", str(folder)]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(json.loads(answer.stdout))
