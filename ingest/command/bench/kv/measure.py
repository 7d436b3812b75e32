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

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ingest.command.bench.kv.idle import idle_rows
from ingest.command.bench.kv.plan import Plan, Progress, Row
from ingest.command.bench.kv.resume import resume_rows
from ingest.command.bench.kv.seat import Seat
from ingest.command.bench.kv.step import step_rows
from ingest.command.bench.kv.write import append_rows, fork_rows, suspend_rows
from ingest.command.bench.models import Measured

BY_TOKENS = {
    "resume": resume_rows,
    "suspend": suspend_rows,
    "append": append_rows,
    "fork": fork_rows,
}


def measure(plan: Plan, model: Measured, home: Path, progress: Progress) -> dict[str, Any]:
    """The whole bench as one object with `rows`. home: a folder on the sessions' disk."""
    home.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    with TemporaryDirectory(prefix="bench-kv-", dir=home) as folder:
        if set(plan.cases) - {"idle"}:
            rows += model_rows(plan, model, Path(folder), progress)
        if "idle" in plan.cases:
            rows += idle_rows(plan, Path(folder), progress)
    return {"bench": "kv", "threads": plan.threads, "rounds": plan.rounds, "rows": rows}


def model_rows(plan: Plan, model: Measured, folder: Path, progress: Progress) -> list[Row]:
    """All that takes a model."""
    progress("loading", 0, 0)
    tokens = plan.tokens_of(model.name)
    seat = Seat(model.folder, folder / "kv", plan.threads, max(tokens))
    rows: list[Row] = []
    for num_tokens in tokens:
        rows += rows_of(plan, model.name, seat, num_tokens, progress)
    if "step" in plan.cases:
        rows += step_rows(plan, seat, max(tokens), progress)
    seat.tier.close()
    return rows


def rows_of(plan: Plan, name: str, seat: Seat, num_tokens: int, progress: Progress) -> list[Row]:
    """Of sessions of so many tokens."""
    rows: list[Row] = []
    for case, part in BY_TOKENS.items():
        if case in plan.cases:
            rows += part(plan, name, seat, num_tokens, progress)
            seat.clear()
    return [{"case": row.pop("case"), "model": name, "tokens": num_tokens, **row} for row in rows]
