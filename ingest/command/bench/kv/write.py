"""What writing takes: a session suspended, a turn appended, a session forked."""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Final

import numpy as np

from ingest.command.bench.kv.plan import GOAL_SUSPEND, TENANT, Plan, Progress, Row, rounded, row
from ingest.command.bench.kv.seat import Seat
from kernels.ops import BLOCK_TOKENS
from kv_tier.format import file_bytes
from kv_tier.manifest import Manifest
from kv_tier.tier import wall_ms

PIECE_BYTES: Final = 1 << 20
FORKS: Final = 5  # of a round


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
