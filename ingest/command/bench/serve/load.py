"""What is asked of a node, and when: by a seed, and whether or not it keeps up.

Arrivals are drawn before the run (open loop): a slow answer delays no request. Lengths are
lognormal; a trace brings its own arrivals and lengths. The same wishes go through the simulator.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from router.simulator.azure import read_trace
from router.simulator.workload import Lengths, Part, Wish, Workload, wishes


@dataclass(frozen=True)
class Load:
    """One run.

    rate      requests a second, on average
    seconds   in which requests arrive
    shape     of the gamma distribution of intervals; 1 is a Poisson process, less comes in bursts
    mix       shares of the classes, by name
    prompt, output   tokens of a request
    """

    rate: float
    seconds: float
    shape: float
    mix: Mapping[str, float]
    prompt: Lengths
    output: Lengths
    seed: int


def wishes_of(load: Load) -> list[Wish]:
    """All requests of a run, by arrival."""
    total = sum(load.mix.values())
    parts = tuple(
        Part(sla, share / total, load.output, load.output.most, prompt=load.prompt)
        for sla, share in load.mix.items()
    )
    context = load.prompt.most + load.output.most
    workload = Workload("r", "", "", "any", load.shape, (context,), parts)
    found = wishes(workload, context, load.rate, load.seed, load.seconds)
    return [replace(wish, max_tokens=wish.output) for wish in found]


def wishes_of_trace(
    path: Path, load: Load, *, speed: float, longest: int, most_output: int
) -> list[Wish]:
    """A trace's requests, its time run `speed` times as fast; classes are drawn by the seed.

    Lengths are cut to what the model holds: most_output, and what that leaves of `longest`.
    Raises BadTrace.
    """
    random, found = Random(f"trace {load.seed}"), []
    names, shares = list(load.mix), list(load.mix.values())
    for number, row in enumerate(read_trace(path)):
        at_s = row.at_s / speed
        if at_s > load.seconds:
            break
        output = min(row.output, most_output)
        prompt = min(row.prompt, longest - output)
        sla = random.choices(names, shares)[0]
        found.append(Wish(f"r{number}", sla, 1000 * at_s, prompt, output, output))
    return found


class Prompts:
    """Random token ids, so that no two prompts begin alike. ids: those that may occur."""

    def __init__(self, ids: Sequence[int], seed: int) -> None:
        self.ids, self.seed = ids, seed

    def of(self, wish: Wish) -> list[int]:
        """The prompt of a request: the same ids for the same seed."""
        return Random(f"{self.seed} {wish.id}").choices(self.ids, k=wish.prompt)
