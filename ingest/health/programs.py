"""How the node's programs are, as their keepers say it in LOCKSTEP_HOME/run/NAME.json.

A keeper that was killed leaves there what it said last: it counts only while that keeper lives.
"""

import time
from pathlib import Path
from typing import Any

import msgspec


class LastExit(msgspec.Struct, frozen=True, kw_only=True):
    """how: in words; code: negative, a signal's number; at_ms: Unix time."""

    how: str
    code: int
    lived_s: float = 0.0
    at_ms: int = 0


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the Procfile; written by workers/keeper.py.

    state          "starting", "running", "waiting" (to be started again), "stopping", "stopped"
    keeper, pid    process ids; pid None while it does not run
    restarts       since its keeper began
    next_start_ms  Unix time of the next start, while it waits
    """

    name: str
    state: str
    keeper: int
    pid: int | None = None
    restarts: int = 0
    started_ms: int | None = None
    stopped_ms: int | None = None
    next_start_ms: int | None = None
    last_exit: LastExit | None = None

    @property
    def is_kept(self) -> bool:
        """Whether the keeper that said this lives."""
        try:
            return b"workers.keeper" in Path(f"/proc/{self.keeper}/cmdline").read_bytes()
        except OSError:
            return False

    def told(self) -> dict[str, Any]:
        """For people: what is not so is left out."""
        said: dict[str, Any] = {"state": self.state, "restarts": self.restarts}
        if self.last_exit is not None:
            said["last_exit"] = self.last_exit.how
        if self.next_start_ms is not None:
            left_s = max(0.0, self.next_start_ms / 1000 - time.time())
            said["next_start_in_s"] = round(left_s, 1)
        return said


def read_program(home: Path, name: str) -> Program | None:
    """What the keeper of this name said last; None: there is none."""
    try:
        return msgspec.json.decode((home / "run" / f"{name}.json").read_bytes(), type=Program)
    except (OSError, msgspec.DecodeError):
        return None


def kept_programs(home: Path) -> list[Program]:
    """Those whose keepers live, by name."""
    names = sorted(path.stem for path in (home / "run").glob("*.json"))
    found = [read_program(home, name) for name in names]
    return [program for program in found if program is not None and program.is_kept]
