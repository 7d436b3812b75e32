"""A request's life in the simulator: where it is, what it has, and what was promised to it."""

from dataclasses import dataclass, field
from typing import Final

from router.placement import Plan
from router.simulator.workload import Wish
from workers.sla import SlaTable

WAITING: Final = "waiting"  # in the stream of its class, or in a pool's queue
CLAIMED: Final = "claimed"  # in a pool: being restored, waiting for memory, or running
MOVING: Final = "moving"  # between two pools: its KV goes through files
FINISHED: Final = "finished"
REFUSED: Final = "refused"
TERMINAL: Final = (FINISHED, REFUSED)


@dataclass(slots=True)
class Job:
    """sla may be changed by promotion; times are virtual ms, None: not yet.

    made       output tokens so far
    known      tokens that were known when it came: of its conversation, in files
    computed   tokens whose KV exists: in the pool that has it, or in files when it is in none
    in_files   of those, how many are in files, too
    read_ms, claimed_ms  when a router first read it (in a fleet), when a pool first claimed it
    computed_in_all  tokens that steps have computed for it: what is over prompt + output was twice
    """

    wish: Wish
    sla: str
    state: str = WAITING
    pool: str = ""
    then: str | None = None
    plan: Plan | None = None
    made: int = 0
    known: int = 0
    computed: int = 0
    in_files: int = 0
    computed_in_all: int = 0
    read_ms: float | None = None
    claimed_ms: float | None = None
    first_ms: float | None = None
    end_ms: float | None = None
    moved_ms: float = 0.0
    retry_after_ms: float | None = None
    moves: int = 0
    reasons: list[str] = field(default_factory=list)

    @property
    def id(self) -> str:
        return self.wish.id

    @property
    def is_behind(self) -> bool:
        """Its full blocks are written while it runs: it is to move, or its conversation is kept."""
        return self.then is not None or self.wish.session is not None

    @property
    def num_tokens(self) -> int:
        """So far: prompt and output."""
        return self.wish.prompt + self.made

    @property
    def ttft_ms(self) -> float | None:
        return None if self.first_ms is None else self.first_ms - self.wish.arrival_ms

    @property
    def tpot_ms(self) -> float | None:
        """None: it has ended with one token, or has not ended."""
        if self.first_ms is None or self.end_ms is None or self.wish.output < 2:
            return None
        return (self.end_ms - self.first_ms) / (self.wish.output - 1)

    def is_met(self, table: SlaTable) -> bool:
        """Whether every promise of its class was kept. What was refused was not."""
        if self.state != FINISHED or self.ttft_ms is None or self.end_ms is None:
            return False
        sla, tpot_ms = table[self.sla], self.tpot_ms
        return (
            (sla.ttft_ms is None or self.ttft_ms <= sla.ttft_ms)
            and (sla.tpot_ms is None or tpot_ms is None or tpot_ms <= sla.tpot_ms)
            and (sla.deadline_ms is None or self.end_ms - self.wish.arrival_ms <= sla.deadline_ms)
        )
