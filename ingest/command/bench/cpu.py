"""`lockstep bench cpu`: tokens/s of prefill and decode, ours and the peer's, in turns.

    for each model, number of threads and case:   ours, peer, ours, peer, ...       medians

Both sides have the same GGUF file, threads, step size and prompts. Beside them stands what the
machine can do at most (limits.py), measured in the same run.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any, Final

import msgspec

from ingest.command.bench.cases import STEP_TOKENS, Case
from ingest.command.bench.limits import measure_limits
from ingest.command.bench.models import Measured
from ingest.command.failure import Failure

WARM_UP: Final = Case(phase="decode", sessions=1, context=16, steps=4)
SHORT: Final = 128  # tokens in each session before the decoded ones
LONG: Final = {"135M-default": (8000,), "1.5B": (4096, 8192, 32000)}  # further contexts, by model
FEW: Final = {"135M-q8_0": (1, 10)}  # sessions of models that are there for one kernel
MANY_SESSIONS: Final = 4096  # with longer contexts than this, one session only
PEER_TOKENS: Final = {"1.5B": 4096}  # longer contexts take the peer minutes to get to
Progress = Callable[[str, int, int], None]
PHASES: Final = ("prefill", "extend", "decode", "in_c")


@dataclass(frozen=True)
class Plan:
    """What is measured of each model.

    contexts  of the decode and extend cases; empty: those that each model has in LONG, and SHORT
    steps     of a round of decode; None: fewer the more sessions there are
    rounds    how often each case is measured on each side
    isa       what our side is kept to, or None
    """

    threads: Sequence[int]
    phases: Sequence[str]
    sessions: Sequence[int]
    contexts: Sequence[int]
    prompt_tokens: int
    steps: int | None
    rounds: int
    isa: str | None = None

    def cases(self, model: str, threads: int) -> list[Case]:
        """Prefill, decode by context and sessions, and the share of a decode step in C.

        A whole long prompt, or the peer behind one, takes longest: with the most threads alone.
        """
        found, most = [], PEER_TOKENS.get(model, 1 << 30)
        contexts = self.contexts or (SHORT, *LONG.get(model, ()))
        if "prefill" in self.phases:
            found.append(Case(phase="prefill", sessions=1, context=self.prompt_tokens))
        for context in contexts:
            for sessions in self._sessions(model, context):
                steps, is_most = self._steps(sessions), threads == max(self.threads)
                beside = context <= most and (context <= MANY_SESSIONS or is_most)
                found.append(
                    Case(phase="decode", sessions=sessions, context=context, steps=steps,
                         beside_peer=beside)
                )  # fmt: skip
            if context <= STEP_TOKENS or threads != max(self.threads):
                continue
            if "extend" in self.phases:
                found.append(Case(phase="extend", sessions=1, context=context, beside_peer=False))
            if "prefill" in self.phases and context > MANY_SESSIONS and context <= most:
                found.append(Case(phase="prefill", sessions=1, context=context))
        if "in_c" in self.phases:
            steps = 4 * self._steps(1)
            found.append(
                Case(phase="in_c", sessions=1, context=SHORT, steps=steps, beside_peer=False)
            )
        return found

    def _sessions(self, model: str, context: int) -> list[int]:
        """Of the decode cases of one context."""
        if "decode" not in self.phases:
            return []
        chosen = [n for n in self.sessions if n in FEW.get(model, self.sessions)]
        return [n for n in chosen if n == 1 or context <= MANY_SESSIONS]

    def _steps(self, sessions: int) -> int:
        return self.steps or (8 if sessions <= 2 else 4 if sessions <= 10 else 2)


class Side:
    """A process that measures cases, one at a time."""

    def __init__(
        self, module: str, model: Path, threads: int, cases: Sequence[Case], rounds: int, *more: str
    ) -> None:
        sessions = max(case.sessions for case in cases)
        tokens = max(case.context + (rounds + 1) * case.steps + 2 for case in cases)
        command = [sys.executable, "-m", f"ingest.command.bench.{module}", str(model)]
        self.process = subprocess.Popen(
            [*command, *map(str, (threads, sessions, tokens)), *more],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.about: dict[str, Any] = msgspec.json.decode(self._line())

    def seconds(self, case: Case) -> float:
        """Measures one case. Raises Failure when the process has died."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(msgspec.json.encode(case).decode() + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise Failure("a measured process died") from None
        return float(self._line())

    def resident_mib(self) -> int:
        """Memory it holds now, mapped weights included."""
        pages = Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE") >> 20

    def stop(self) -> None:
        self.process.kill()
        self.process.communicate()

    def _line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise Failure(f"a measured process died with {self.process.wait()}")
        return line


def has_peer() -> bool:
    return find_spec("llama_cpp") is not None


def start_peer(gguf: Path, threads: int, cases: Sequence[Case], rounds: int) -> Side:
    """llama.cpp, with its repacked weights where they do not crash it."""
    side = Side("peer", gguf, threads, cases, rounds)
    try:
        side.seconds(WARM_UP)
        return side
    except Failure:
        side.stop()
    return Side("peer", gguf, threads, cases, rounds, "plain")


class Counted:
    """Tells which case of how many comes next."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress, self._done, self._total = progress, 0, total

    def tell(self, what: str) -> None:
        self._progress(what, self._done, self._total)
        self._done += 1


def measure(
    plan: Plan, models: Sequence[Measured], with_peer: bool, progress: Progress
) -> dict[str, Any]:
    """The whole bench as one object with `rows`; busy: load average before it. Raises Failure."""
    busy = os.getloadavg()[0]
    runs = [(model, threads) for model in models for threads in plan.threads]
    total = sum(len(plan.cases(model.name, threads)) for model, threads in runs)
    progress("limits", 0, total)
    limits, peer = measure_limits(), None
    rows: list[dict[str, Any]] = []
    counted = Counted(progress, total)
    for model, threads in runs:
        for group in groups(plan.cases(model.name, threads)):
            found, about = measure_group(plan, model, threads, group, with_peer, counted)
            rows += found
            peer = about or peer
    about = {"processor": processor(), "busy": round(busy, 2), "limits": limits}
    return {"bench": "cpu", **about, "peer": peer, "rows": rows}


def measure_group(
    plan: Plan,
    model: Measured,
    threads: int,
    group: Sequence[Case],
    with_peer: bool,
    counted: Counted,
) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """Rows of cases that share a pair of processes, and what the peer says of itself."""
    rows: list[dict[str, Any]] = []
    sides = [Side("ours", model.folder, threads, group, plan.rounds, plan.isa or "")]
    try:
        peer_cases = [case for case in group if case.beside_peer]
        if with_peer and peer_cases:
            sides.append(start_peer(model.gguf, threads, peer_cases, plan.rounds))
        for side in sides:
            side.seconds(WARM_UP)
        for case in group:
            counted.tell(f"{model.name} {threads} {case.phase} {case.sessions} {case.context}")
            asked = sides if case.beside_peer else sides[:1]
            times = [[side.seconds(case) for side in asked] for _ in range(plan.rounds)]
            found = row(model.name, threads, case, sides[0].about, *zip(*times, strict=True))
            rows.append(found | {"resident_mib": sides[0].resident_mib()})
    finally:
        for side in sides:
            side.stop()
    return rows, sides[1].about if len(sides) > 1 else None


def groups(cases: Sequence[Case]) -> list[list[Case]]:
    """Cases that one pair of processes measures: short contexts, then each longer one."""
    short = [case for case in cases if case.context <= STEP_TOKENS]
    longer = sorted({case.context for case in cases} - {case.context for case in short})
    found = [short, *([c for c in cases if c.context == context] for context in longer)]
    return [group for group in found if group]


def processor() -> str:
    """The name of this machine's processor, as Linux gives it."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else "unknown"


def row(
    model: str,
    threads: int,
    case: Case,
    work: dict[str, Any],
    ours: Sequence[float],
    peer: Sequence[float] | None = None,
) -> dict[str, Any]:
    """One case: medians in tokens/s (in_c: a share), and every round's value."""
    told: dict[str, Any] = {
        "case": case.phase,
        "model": model,
        "threads": threads,
        "sessions": case.sessions,
        "context": case.context,
        "isa": work.get("isa"),
    }
    if case.phase == "in_c":
        return told | {"unit": "share", "ours": round(median(ours), 3), "ours_runs": list(ours)}
    speeds = [case.num_tokens / seconds for seconds in ours]
    told |= {"unit": "tokens/s", "ours": round(median(speeds), 2), "peer": None, "ratio": None}
    if peer is not None:
        others = [case.num_tokens / seconds for seconds in peer]
        told |= {"peer": round(median(others), 2)}
        told |= {"ratio": round(median(speeds) / median(others), 3)}
        told |= {"peer_runs": [round(value, 2) for value in others]}
    told |= {"ours_runs": [round(value, 2) for value in speeds]}
    return told | rates(case, work, median(ours), threads)


def rates(case: Case, work: dict[str, Any], seconds: float, threads: int) -> dict[str, float]:
    """Multiply-adds of the matrices, and bytes of weights and KV that must be read, a second."""
    if case.phase in ("prefill", "extend"):
        steps = -(-case.num_tokens // STEP_TOKENS)
        macs = work["layer_macs"] * case.num_tokens + work["head_macs"]
        read = work["weight_bytes"] * steps
        read += work["kv_bytes"] * case.context if case.phase == "extend" else 0
    else:
        macs = (work["layer_macs"] + work["head_macs"]) * case.num_tokens
        read = work["weight_bytes"] * case.steps
        read += work["kv_bytes"] * case.context * case.num_tokens
    return {
        "gmacs_per_core": round(macs / seconds / threads / 1e9, 1),
        "gb_per_s": round(read / seconds / 1e9, 2),
    }
