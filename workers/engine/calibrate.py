"""What a pool's steps cost, measured at its start: a few steps of made-up sequences.

    decodes, positions before each          1, 64      4, 64     16, 64     1, 2048
    prefilled tokens, positions before     16, 0     128, 0     512, 0    128, 2048

Each is run while there is time: the quickest few runs of each in BUDGET_MS, all in all. What is
expected not to fit any more is left out, but for the first two; so a large model on a slow machine
starts with a rough estimate and corrects it online (cost.py). Nothing that was measured touches a
result.

The numbers are kept in LOCKSTEP_HOME/calibration/POOL-MODEL-MACHINE.json: a second start of the
same model on the same machine measures nothing. A file that cannot be read is measured anew.
"""

import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from kernels.arithmetic import ARITHMETIC_VERSION
from workers.cost import CostModel
from workers.engine.cost import Work, learn
from workers.engine.engine import Engine
from workers.engine.sequence import Sequence
from workers.log import logger
from workers.wire import Request, SamplingParams

log = logger("engine")
BUDGET_MS: Final = 1500.0
RUNS_MAX: Final = 4  # of one kind of step; the quickest counts
VERSION: Final = 1


class Probe(NamedTuple):
    """So many sequences, of each of which `context` tokens are computed, and `tokens` to be."""

    sequences: int
    context: int
    tokens: int

    def work(self) -> Work:
        if self.tokens == 1:
            return Work(self.sequences, self.sequences * self.context)
        return Work(0, 0, self.sequences * self.tokens, self.context + self.tokens / 2)


GRID: Final = (
    *(Probe(1, 64, 1), Probe(1, 0, 16)),
    *(Probe(4, 64, 1), Probe(1, 0, 128), Probe(1, 2048, 1)),
    *(Probe(16, 64, 1), Probe(1, 2048, 128), Probe(1, 0, 512)),
)
FIRST: Final = 2  # are measured however long they take


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """What the file holds.   steps: (ms, what the step computed)"""

    version: int
    pool: str
    weights_digest: str
    machine: str
    cost: CostModel
    steps: list[tuple[float, Work]]


def calibrated(
    engine: Engine, home: Path, *, pool: str, weights_digest: str, machine: str
) -> CostModel:
    """What the engine's steps cost: as it was measured before, or measured now.

    machine: all that decides how fast it is (machine_of)
    """
    known = read(path_of(home, pool, weights_digest, machine))
    if known is not None and (known.weights_digest, known.machine) == (weights_digest, machine):
        return known.cost
    begin = time.monotonic()
    steps = measure(engine)
    cost = learn(steps)
    log.info("calibrated", pool=pool, steps=len(steps), s=round(time.monotonic() - begin, 2))
    write(
        path_of(home, pool, weights_digest, machine),
        Calibration(
            version=VERSION,
            pool=pool,
            weights_digest=weights_digest,
            machine=machine,
            cost=cost,
            steps=steps,
        ),
    )
    return cost


def measure(
    engine: Engine,
    budget_ms: float = BUDGET_MS,
    now_ms: Callable[[], float] = lambda: 1000 * time.monotonic(),
) -> list[tuple[float, Work]]:
    """(ms, work) of each kind of step that there was time and memory for."""
    end_ms = now_ms() + budget_ms
    steps: list[tuple[float, Work]] = []
    for number, probe in enumerate(GRID):
        left_ms = end_ms - now_ms()
        if number >= FIRST and learn(steps).step_ms(*probe.work()) > left_ms:
            continue
        fastest = None
        for run in range(RUNS_MAX):
            ms = engine.probe(made_up(engine, probe), probe.context)
            if ms is None:
                break
            fastest = ms if fastest is None else min(fastest, ms)
            share_ms = left_ms / (len(GRID) - number)
            if (run + 2) * ms > share_ms:
                break
        if fastest is not None:
            steps.append((fastest, probe.work()))
    engine.rest()
    return steps


def made_up(engine: Engine, probe: Probe) -> list[Sequence]:
    """Sequences whose tokens nobody reads."""
    length = probe.context + probe.tokens
    params = SamplingParams(max_tokens=1, temperature=0.0)
    ids = tuple(1 + n % 7 for n in range(length))
    requests = [
        Request(id=f"calibration-{n}", model="", token_ids=ids, arrival_ms=0, params=params)
        for n in range(probe.sequences)
    ]
    return [Sequence(request, None, 0, length + 1) for request in requests]


def machine_of(threads: int, isa: str, device: str = "") -> str:
    """What decides how fast a pool is, in one line.   device: a GPU's name"""
    return f"{device or cpu_name()}; {threads} threads; {isa}; arithmetic {ARITHMETIC_VERSION}"


def cpu_name() -> str:
    """As the kernel says it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else os.uname().machine


def path_of(home: Path, pool: str, weights_digest: str, machine: str) -> Path:
    digest = hashlib.sha256(machine.encode()).hexdigest()
    return home / "calibration" / f"{pool}-{weights_digest[:16]}-{digest[:16]}.json"


def read(path: Path) -> Calibration | None:
    """None: there is none that can be used."""
    try:
        known = msgspec.json.decode(path.read_bytes(), type=Calibration)
    except (OSError, msgspec.DecodeError):
        return None
    return known if known.version == VERSION else None


def write(path: Path, calibration: Calibration) -> None:
    """In one piece; a disk that refuses it costs the next start its time."""
    made = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        made.write_bytes(msgspec.json.format(msgspec.json.encode(calibration), indent=1))
        made.replace(path)
    except OSError as error:
        log.warning("the calibration is not kept", error=str(error))
