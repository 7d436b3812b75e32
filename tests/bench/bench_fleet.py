"""A fleet simulated, and its Redis operations counted: the figures of tests/bench/FLEET.md.

    python tests/bench/bench_fleet.py [--sessions 100000] [--part simulated,counted] [--plot F.png]
                                      [--json FILE]

simulated  100 nodes of two kinds on a virtual clock, with the real policy (router/simulator/fleet)
counted    real routers on a real Valkey, 1 to 100 of them (tests/fleet/simulation/operations.py)
"""

import argparse
import json
import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from router.simulator.fleet.load import Case
from router.simulator.fleet.study import Findings, balance, percentiles, simulate
from router.simulator.workload import load_workloads
from tests.fleet.simulation.operations import Row, measure

SIZES = (1, 3, 10, 30, 100)
KINDS = {"both": "GPU and CPU", "small": "CPU alone"}
COLORS = {"realtime": "#d62728", "standard": "#1f77b4", "batch": "#7f7f7f"}


@dataclass(frozen=True)
class Played:
    """One simulated case, in numbers. ms: p50, p95, p99 by class."""

    name: str
    nodes: int
    sessions: int
    requests: int
    lost: int
    met: dict[str, float]
    read_ms: dict[str, tuple[float, ...]]
    claim_ms: dict[str, tuple[float, ...]]
    first_ms: dict[str, tuple[float, ...]]
    balance: dict[str, tuple[float, float, float]]  # by kind: least, mean, most
    at_home: float
    moved: float
    adopted: int
    adopted_ms: tuple[float, ...]  # p50, p95, p99 after the death
    seconds: float
    num_events: int


def cases(sessions: int) -> dict[str, Case]:
    """The largest first; of a smaller fleet as many conversations for each node."""
    whole = Case(sessions=sessions, seconds=600.0)
    less = replace(whole, seconds=180.0)
    return {
        "100 nodes": whole,
        "100 nodes, 5 die": replace(less, deaths=5),
        "100 nodes, load 0.4": replace(less, part=0.4),
        "100 nodes, load 0.8": replace(less, part=0.8),
        "30 nodes": replace(less, both=18, small=12, sessions=sessions * 3 // 10),
        "10 nodes": replace(less, both=6, small=4, sessions=sessions // 10),
    }


def play(name: str, case: Case) -> Played:
    _, table = load_workloads()
    found = simulate(case, table)
    shown = {
        what: {
            sla: tuple(round(ms, 1) for ms in percentiles(values))
            for sla, values in getattr(found, what).items()
        }
        for what in ("read_ms", "claim_ms", "first_ms")
    }
    return Played(
        name,
        case.both + case.small,
        found.sessions,
        found.requests,
        found.lost,
        {sla: round(found.met[sla] / found.judged[sla], 4) for sla in found.judged},
        balance=by_kind(found),
        at_home=round(found.at_home / max(1, found.later), 4),
        moved=round(found.moved / max(1, sum(found.work.values())), 4),
        adopted=len(found.adopted_ms),
        adopted_ms=percentiles(found.adopted_ms or [0.0]),
        seconds=case.seconds,
        num_events=found.num_events,
        **shown,
    )


def by_kind(found: Findings) -> dict[str, tuple[float, float, float]]:
    """A node with a GPU is much faster than one without."""
    parts, most = balance(found), max(found.speed.values())
    told = {}
    for kind, is_fast in (("both", True), ("small", False)):
        mine = [parts[n] for n, speed in found.speed.items() if (speed > most / 2) is is_fast]
        if mine:
            told[kind] = (round(min(mine), 2), round(sum(mine) / len(mine), 2), round(max(mine), 2))
    return told


def simulated(sessions: int) -> list[Played]:
    """Side by side, the longest first."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), spawn) as pool:
        asked = [pool.submit(play, name, case) for name, case in cases(sessions).items()]
        found = []
        for one in asked:
            found.append(one.result())
            print(told_of(found[-1]), flush=True)
    return found


def told_of(played: Played) -> str:
    lines = [
        f"{played.name}: {played.sessions} conversations, {played.requests} requests in "
        f"{played.seconds:.0f} s, {played.lost} lost; at home {played.at_home:.1%}, moved "
        f"{played.moved:.1%}"
    ]
    if played.adopted:
        lines.append(f"  {played.adopted} taken over from the dead after {played.adopted_ms} ms")
    for sla, waits in sorted(played.claim_ms.items(), key=lambda one: list(COLORS).index(one[0])):
        lines.append(
            f"  {sla:9} kept {played.met[sla]:.2%}; p50, p95, p99 in ms: read "
            f"{played.read_ms[sla]}, claimed {waits}, first token {played.first_ms[sla]}"
        )
    for kind, (least, mean, most) in played.balance.items():
        lines.append(f"  work over speed, {KINDS[kind]}: {least} to {most}, mean {mean}")
    return "\n".join(lines)


def counted(seconds: float) -> list[Row]:
    rows = []
    for nodes in SIZES:
        rows.append(measure(nodes, 0.5, seconds, processes=3, seed=1))
        row = rows[-1]
        print(
            f"{nodes} nodes: {row.requests} requests, ended {row.ends}; a request: "
            f"{row.request.executed} commands, {row.request.cpu_us} us of the server; idle, a node "
            f"and second: {row.idle.executed}, {row.idle.cpu_us} us",
            flush=True,
        )
    return rows


def draw(played: list[Played], rows: list[Row], path: Path) -> None:
    """Commands a request by nodes; how long requests waited for a pool; work beside speed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 3, figsize=(13, 3.8))
    by_nodes(axes[0], rows)
    by_case(axes[1], played)
    beside_speed(axes[2], played)
    figure.tight_layout()
    figure.savefig(path, dpi=80)
    pyplot.close(figure)


def by_nodes(axis: Any, rows: list[Row]) -> None:
    nodes = [row.nodes for row in rows]
    axis.plot(nodes, [row.request.executed for row in rows], "o-", label="a request")
    axis.plot(nodes, [row.idle.executed for row in rows], "s--", label="idle, a node and second")
    axis.set(xscale="log", xlabel="nodes", ylabel="Redis commands", ylim=(0, None))
    axis.set_xticks(nodes, list(map(str, nodes)))
    axis.legend(fontsize=8)


def by_case(axis: Any, played: list[Played]) -> None:
    names = [one.name for one in played]
    for place, sla in enumerate(COLORS):
        waits = [one.first_ms[sla] for one in played]
        heights = [y + 0.25 * (place - 1) for y in range(len(played))]
        axis.barh(heights, [p95 / 1000 for _, p95, _ in waits], 0.22, color=COLORS[sla], label=sla)
    axis.set_yticks(range(len(names)), names, fontsize=8)
    axis.invert_yaxis()
    axis.set(xscale="log", xlabel="first token, p95, s")
    axis.set_xticks([1, 3, 10, 30, 100], ["1", "3", "10", "30", "100"])
    axis.minorticks_off()
    axis.legend(fontsize=8)


def beside_speed(axis: Any, played: list[Played]) -> None:
    names = [one.name for one in played]
    for kind, color, shift in (("both", "#2ca02c", -0.12), ("small", "#ff7f0e", 0.12)):
        told = [one.balance[kind] for one in played]
        means = [mean for _, mean, _ in told]
        spread = [[m - low for low, m, _ in told], [high - m for _, m, high in told]]
        heights = [y + shift for y in range(len(played))]
        axis.errorbar(means, heights, xerr=spread, fmt="o", color=color, label=KINDS[kind])
    axis.axvspan(0.85, 1.15, color="#000000", alpha=0.08)
    axis.set_yticks(range(len(names)), [""] * len(names))
    axis.set(xlabel="share of the work / share of the speed", ylim=(len(names) + 0.4, -0.5))
    axis.legend(fontsize=8, loc="lower left", ncols=2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sessions", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=20.0, help="of load, where it is counted")
    parser.add_argument("--part", default="simulated,counted")
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--json", type=Path, help="all numbers, into this file")
    given = parser.parse_args()
    played = simulated(given.sessions) if "simulated" in given.part else []
    rows = counted(given.seconds) if "counted" in given.part else []
    if given.json:
        told = {"simulated": [asdict(one) for one in played], "counted": [asdict(r) for r in rows]}
        given.json.write_text(json.dumps(told, indent=1))
    if given.plot:
        draw(played, rows, given.plot)


if __name__ == "__main__":
    main()
