"""Which fleet, and what it is asked: nodes of two kinds, conversations whose turns come by a seed.

The GPU and CPU are those of hardware/published.toml; a small node has that CPU alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from router.simulator.hardware import Hardware, PoolHardware, load
from router.simulator.workload import Lengths, Part, Talk, Workload, wishes
from router.simulator.workload import Wish as Wish

CONTEXT: Final = 8192
TALK: Final = Talk(turns=2.0, think_s=30.0, begins=0.0)
SHARES: Final[Mapping[str, float]] = {"realtime": 0.2, "standard": 0.5, "batch": 0.3}


def conversations() -> Workload:
    """Chats of two turns in the mean; lengths: Azure 2023, conversation (workloads.toml)."""
    prompt, output = Lengths(400, 0.7, 2048), Lengths(129, 0.95, 512)
    parts = tuple(
        Part(sla, share, output, max_tokens=512, prompt=prompt, session=TALK)
        for sla, share in SHARES.items()
    )
    return Workload("s", "conversations", "", "any", 1.0, (CONTEXT,), parts)


@dataclass(frozen=True, slots=True)
class Case:
    """A fleet and its load.

    both, small  nodes with GPU and CPU; with the CPU alone
    sessions     conversations that begin
    part         of what the nodes say they can do (FleetNode.speed), the load
    deaths       nodes that die in the middle of it, one each minute
    """

    both: int = 60
    small: int = 40
    sessions: int = 100_000
    part: float = 0.6
    deaths: int = 0
    seed: int = 1

    def hardware(self) -> list[Mapping[str, PoolHardware]]:
        """Kinds mixed evenly over the nodes' numbers."""
        published: Hardware = load("published")
        small = {"cpu": published.pools["cpu"]}
        count = self.both + self.small
        is_small = [(n + 1) * self.small // count > n * self.small // count for n in range(count)]
        return [small if one else published.pools for one in is_small]

    def wishes(self, speed: float) -> tuple[list[Wish], float]:
        """The first turns by arrival, and the seconds in which they come.   speed: requests/s"""
        rate = self.part * speed
        horizon_s = self.sessions * TALK.turns / rate
        return wishes(conversations(), CONTEXT, rate, self.seed, horizon_s), horizon_s
