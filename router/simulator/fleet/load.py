"""Which fleet, and what it is asked: nodes of two kinds, and many conversations that come back.

Conversations are there already, each at home on some node, and ask again now and then: so all of
them together make the load, however few ask in the time that is simulated. The GPU and the CPU are
those of hardware/published.toml; a small node has that CPU alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Final

from router.simulator.hardware import PoolHardware, load
from router.simulator.workload import Lengths, Turn, Wish

CONTEXT: Final = 8192
SHARES: Final[Mapping[str, float]] = {"realtime": 0.2, "standard": 0.5, "batch": 0.3}
HISTORY: Final = Lengths(1000, 0.7, 4096)  # tokens that a conversation has when it comes back
PROMPT: Final = Lengths(400, 0.7, 2048)  # what a turn adds, and the answer: workloads.toml
OUTPUT: Final = Lengths(129, 0.95, 512)
MAX_TOKENS: Final = 512
TURNS: Final = 2.0  # mean, of those that come back
THINK_S: Final = 30.0  # mean, between these


@dataclass(frozen=True, slots=True)
class Case:
    """A fleet and its load.

    both, small  nodes with GPU and CPU; with the CPU alone
    sessions     conversations that are kept
    part         of what the nodes say they can do (FleetNode.speed), the load
    seconds      that are simulated; what has begun by then goes on to its end
    deaths       nodes that die, one each ten seconds from the middle on
    """

    both: int = 60
    small: int = 40
    sessions: int = 100_000
    part: float = 0.6
    seconds: float = 300.0
    deaths: int = 0
    seed: int = 1

    def hardware(self) -> list[Mapping[str, PoolHardware]]:
        """Kinds mixed evenly over the nodes' numbers."""
        published = load("published")
        small = {"cpu": published.pools["cpu"]}
        count = self.both + self.small
        is_small = [(n + 1) * self.small // count > n * self.small // count for n in range(count)]
        return [small if one else published.pools for one in is_small]

    def wishes(self, speed: float) -> list[Wish]:
        """The first request of each conversation that comes back in time.

        speed: requests a second that the whole fleet can do
        """
        random = Random(self.seed)
        every_s = self.sessions * TURNS / (self.part * speed)
        arrivals = [random.expovariate(1 / every_s) for _ in range(self.sessions)]
        return [
            come_back(f"s{number}", 1000 * at_s, random)
            for number, at_s in enumerate(arrivals)
            if at_s <= self.seconds
        ]


def come_back(name: str, arrival_ms: float, random: Random) -> Wish:
    """A conversation asks again, once or more."""
    history = HISTORY.draw(random)
    (sla,) = random.choices(list(SHARES), list(SHARES.values()))
    first = turn(random)
    turns: list[Turn] = []
    held = history + first.prompt + first.output
    while random.random() > 1 / TURNS:
        turns.append(turn(random))
        held += turns[-1].prompt + turns[-1].output
        if held + MAX_TOKENS > CONTEXT:
            turns.pop()
            break
    return Wish(
        f"{name}-0",
        sla,
        arrival_ms,
        prompt=history + first.prompt,
        output=first.output,
        max_tokens=MAX_TOKENS,
        session=name,
        history=history,
        turns=tuple(turns),
        context=CONTEXT,
    )


def turn(random: Random) -> Turn:
    think_ms = 1000 * random.expovariate(1 / THINK_S)
    return Turn(PROMPT.draw(random), OUTPUT.draw(random), MAX_TOKENS, think_ms)
