"""`lockstep bench cpu`: tokens/s of prefill and decode, ours and the peer's, in turns.

    round 1: case 1 ours, case 1 peer, case 2 ours, case 2 peer, ...     round 2: the same again

Both sides have the same GGUF file, threads, step size and prompts; medians over the rounds.
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

from ingest.command.bench.cases import Case
from ingest.command.failure import Failure

WARM_UP: Final = Case(phase="decode", sessions=1, prompt_tokens=16, steps=4)
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Plan:
    """What is measured.

    folder  of the model; gguf: the file it was made from
    rounds  how often each case is measured on each side
    """

    folder: Path
    gguf: Path
    threads: int
    sessions: Sequence[int]
    prompt_tokens: int
    context_tokens: int
    steps: int
    rounds: int

    def cases(self) -> list[Case]:
        """Prefill and decode for each number of sessions."""
        found = []
        for sessions in self.sessions:
            prefill = Case(phase="prefill", sessions=sessions, prompt_tokens=self.prompt_tokens)
            context, steps = self.context_tokens, self.steps
            found += [
                prefill,
                Case(phase="decode", sessions=sessions, prompt_tokens=context, steps=steps),
            ]
        return found

    @property
    def max_tokens(self) -> int:
        """Of one session; beyond its steps a session decodes while the others prefill."""
        slack = 2 * (2 + max(self.sessions))
        return max(self.prompt_tokens, self.context_tokens + self.steps) + slack


class Side:
    """A process that measures cases, one at a time."""

    def __init__(self, module: str, model: Path, plan: Plan, *more: str) -> None:
        sizes = (plan.threads, max(plan.sessions), plan.max_tokens)
        command = [sys.executable, "-m", f"ingest.command.bench.{module}", str(model)]
        self.process = subprocess.Popen(
            [*command, *map(str, sizes), *more],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.about: dict[str, str] = msgspec.json.decode(self._line())

    def seconds(self, case: Case) -> float:
        """Measures one case. Raises Failure when the process has died."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(msgspec.json.encode(case).decode() + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise Failure("a measured process died") from None
        return float(self._line())

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


def start_peer(plan: Plan) -> Side:
    """llama.cpp, with its repacked weights where they do not crash it."""
    side = Side("peer", plan.gguf, plan)
    try:
        side.seconds(WARM_UP)
        return side
    except Failure:
        side.stop()
    return Side("peer", plan.gguf, plan, "plain")


def measure(plan: Plan, with_peer: bool, progress: Progress) -> dict[str, Any]:
    """The whole bench as one object with `rows`; busy: load average before it. Raises Failure."""
    busy = os.getloadavg()[0]
    sides = [Side("ours", plan.folder, plan)]
    try:
        if with_peer:
            sides.append(start_peer(plan))
        for side in sides:
            side.seconds(WARM_UP)
        speeds = run_rounds(plan, sides, progress)
        peer = sides[1].about if with_peer else None
    finally:
        for side in sides:
            side.stop()
    rows = [row(case, *found) for case, found in zip(plan.cases(), speeds, strict=True)]
    about = {"threads": plan.threads, "processor": processor(), "busy": round(busy, 2)}
    return {"bench": "cpu", **about, "peer": peer, "rows": rows}


def processor() -> str:
    """The name of this machine's processor, as Linux gives it."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else "unknown"


def run_rounds(plan: Plan, sides: list[Side], progress: Progress) -> list[list[list[float]]]:
    """Tokens/s by case, side and round."""
    cases = plan.cases()
    speeds: list[list[list[float]]] = [[[] for _ in sides] for _ in cases]
    done, total = 0, plan.rounds * len(cases) * len(sides)
    for _ in range(plan.rounds):
        for case, found in zip(cases, speeds, strict=True):
            for side, mine in zip(sides, found, strict=True):
                progress(f"{case.phase} {case.sessions} {side.about['name']}", done, total)
                mine.append(case.num_tokens / side.seconds(case))
                done += 1
    progress("", done, total)
    return speeds


def row(case: Case, ours: list[float], peer: list[float] | None = None) -> dict[str, Any]:
    """One case: medians in tokens/s, and every round's value."""
    told: dict[str, Any] = {
        "case": case.phase,
        "sessions": case.sessions,
        "prompt_tokens": case.prompt_tokens,
        "steps": case.steps,
        "unit": "tokens/s",
        "ours": round(median(ours), 2),
        "ours_runs": [round(value, 2) for value in ours],
    }
    if peer is not None:
        told["peer"] = round(median(peer), 2)
        told["ratio"] = round(median(ours) / median(peer), 3)
        told["peer_runs"] = [round(value, 2) for value in peer]
    return told
