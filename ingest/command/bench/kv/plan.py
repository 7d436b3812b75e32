"""What `lockstep bench kv` measures, against which goals, and how a row of it looks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

TOKENS: Final = {"1.5B": (32768,)}  # of the sessions, by model
TOKENS_ELSE: Final = (1024, 8192)
COMPUTED_MAX: Final = {"1.5B": 0}  # tokens up to which KV is computed; others: 8192
COMPUTED_ELSE: Final = 8192
GOAL_MS: Final = 20.0  # to resume from the page cache, and the bytes at:
GOAL_BYTES_PER_S: Final = 10e9
GOAL_SUSPEND: Final = 0.7  # of the disk's bandwidth
GOAL_START_S: Final = 2.0
GOAL_SESSION_BYTES: Final = 1024.0
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


def is_computed(model: str, num_tokens: int) -> bool:
    """Whether KV of so many tokens is computed, or made up: that would take minutes."""
    return num_tokens <= COMPUTED_MAX.get(model, COMPUTED_ELSE)


def row(case: str, unit: str, ours: float, goal: float | None = None, **more: Any) -> Row:
    """goal: absent where nothing was promised; ratio: ours to it."""
    ratio = None if not goal else round(ours / goal, 3)
    return {"case": case, **more, "unit": unit, "ours": rounded(ours), "goal": goal, "ratio": ratio}


def rounded(value: float) -> float:
    """Four digits that count."""
    return float(f"{value:.4g}")
