"""`make chaos SEED=n MINUTES=m`: seeded runs, one after the other, until the time is over.

    python -m tests.chaos.run [--seed N] [--runs N | --minutes M] [--rounds N] [--fault NAME ...]
        [--json FILE] [--logs FOLDER]

Prints a line a run and a table at the end; FILE gets one JSON object a run. Exit code 1: something
was lost, doubled, wrong, or left.
"""

import argparse
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from tests.chaos.checks import violations
from tests.chaos.faults.menu import MENU, drawn
from tests.chaos.node import MODELS, ChaosNode
from tests.chaos.storm import Fault, Outcome, Storm

FAULTS = (2, 5)  # of a run, from and to
PACE_S = 0.7  # between two of them, on average


def one_run(seed: int, names: list[str], model: str, logs: Path | None = None) -> Outcome:
    """On a node of its own, with these faults."""
    node = ChaosNode(model)
    try:
        return Storm(seed, node, [MENU[name] for name in names], PACE_S, violations).run(logs)
    finally:
        node.end_all()


class Runner:
    """Runs of seeds, some of them one after the other on the same node while all goes well."""

    def __init__(self, rounds: int, names: list[str] | None, logs: Path | None) -> None:
        """names: of the faults of each run, None: as the seed draws them."""
        self.rounds, self.names, self.logs = rounds, names, logs
        self.node: ChaosNode | None = None
        self.left = 0

    def run(self, seed: int) -> Outcome:
        chance = random.Random(f"{seed} run")
        model, number = chance.choice(MODELS), chance.randint(*FAULTS)
        faults = [MENU[name] for name in self.names] if self.names else drawn(seed, number)
        if self.node is not None and not fits(self.node, faults):
            self.end()
        if self.node is None:
            self.node, self.left = ChaosNode(model), self.rounds
        outcome = Storm(seed, self.node, faults, PACE_S, violations).run(self.logs)
        self.left -= 1
        if not self.left or outcome.violations or is_marked(self.node, faults):
            self.end()
        return outcome

    def end(self) -> None:
        if self.node is not None:
            self.node.end_all()
        self.node = None


def fits(node: ChaosNode, faults: list[Fault]) -> bool:
    """Whether the node stands where they can be injected."""
    return node.is_linked or not any(fault.linked for fault in faults)


def is_marked(node: ChaosNode, faults: list[Fault]) -> bool:
    """Whether what was done to it stays: its clock is wrong, or files are damaged."""
    is_damaged = any(fault.name in ("flipped_bits", "cut_files") for fault in faults)
    return is_damaged or node.clock.read_bytes() != bytes(8)


def described(outcome: Outcome) -> str:
    """A run in a line."""
    ends = " ".join(f"{count} {name}" for name, count in sorted(outcome.ends.items()))
    names = " ".join(name for _, name, _ in outcome.faults)
    verdict = "GOOD" if not outcome.violations else f"BAD ({len(outcome.violations)})"
    head = f"seed {outcome.seed:<4} {verdict:<8} {outcome.seconds:5.1f} s {outcome.model:<11}"
    cut = f", {len(outcome.cut)} cut off" if outcome.cut else ""
    return f"{head} {outcome.asked} asked: {ends}{cut}; {names}"


def tell(console: Console, outcome: Outcome, path: Path | None) -> None:
    console.print(described(outcome), highlight=False, soft_wrap=True)
    for what in outcome.violations:
        console.print(f"    {what}", highlight=False, markup=False, soft_wrap=True)
    if path:
        with path.open("ab") as file:
            file.write(msgspec.json.encode(outcome) + b"\n")


def table(outcomes: list[Outcome]) -> Table:
    """Per fault: runs with it, and those of them that were bad."""
    runs: Counter[str] = Counter()
    bad: Counter[str] = Counter()
    for outcome in outcomes:
        names = {name for _, name, _ in outcome.faults}
        runs.update(names)
        bad.update(names if outcome.violations else ())
    shown = Table("fault", "runs", "of them bad", box=None)
    for name in MENU:
        if runs[name]:
            shown.add_row(name, str(runs[name]), str(bad[name]))
    return shown


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.run", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the first run")
    parser.add_argument("--runs", type=int, help="as many")
    parser.add_argument("--minutes", type=float, default=5.0, help="for so long")
    parser.add_argument("--fault", action="append", choices=list(MENU), help="instead of drawn")
    parser.add_argument("--rounds", type=int, default=3, help="on one node, while all goes well")
    parser.add_argument("--json", type=Path, help="one object a run is added to it")
    parser.add_argument("--logs", type=Path, help="folder for the logs of nodes of bad runs")
    given = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the node of the run ends as well
    console, outcomes = Console(), list[Outcome]()
    runner = Runner(given.rounds, given.fault, given.logs)
    end = time.monotonic() + given.minutes * 60
    try:
        while len(outcomes) < given.runs if given.runs else time.monotonic() < end:
            outcomes.append(runner.run(given.seed + len(outcomes)))
            tell(console, outcomes[-1], given.json)
    finally:
        runner.end()
    bad = sum(bool(outcome.violations) for outcome in outcomes)
    console.print(table(outcomes))
    asked = sum(outcome.asked for outcome in outcomes)
    console.print(f"{len(outcomes)} runs, {asked} requests, {bad} runs bad")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
