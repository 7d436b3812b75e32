"""Runs the measuring process, and shows what it found: one line for each case.

A rehearsal is the same process on the emulated driver (kernels/cuda/emulate), with tiny shapes: it
says that the script works, and nothing about speed.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ingest.command.failure import Failure

SIZES = ("model", "matrix", "rows", "cols", "tokens", "sessions", "context")


def run(
    out: Path, *, seconds: int, threads: int, parts: str, is_rehearsal: bool, is_fresh: bool
) -> dict[str, Any]:
    """What OUT holds afterwards. Raises Failure."""
    if is_fresh:
        out.unlink(missing_ok=True)
    kind = "rehearsal" if is_rehearsal else "real"
    command = [sys.executable, "-m", "ingest.command.bench.gpu.measure", str(out), str(seconds)]
    done = subprocess.run([*command, str(threads), kind, parts], env=_environment(is_rehearsal))
    if done.returncode:
        raise Failure(f"the measurement ended with {done.returncode}; {out} has what was done")
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def _environment(is_rehearsal: bool) -> dict[str, str]:
    """Raises Failure when the GPU cannot be emulated."""
    if not is_rehearsal:
        return dict(os.environ)
    from kernels.cuda.emulate.build import NoCompiler
    from kernels.cuda.emulate.driver import environment
    from kernels.cuda.emulate.pycuda_site import NoPyCuda, site

    try:
        place = site()
        if place is not None:
            sys.path.insert(0, str(place))
        paths = [p for p in sys.path if p]
        return dict(os.environ) | environment() | {"PYTHONPATH": os.pathsep.join(paths)}
    except (NoCompiler, NoPyCuda) as error:
        raise Failure(f"the GPU cannot be emulated: {error}") from error


def show(found: dict[str, Any]) -> None:
    """A short table, and what stands beside each number."""
    about = "rehearsal, its numbers mean nothing" if found["is_rehearsal"] else found["gpu"]
    table = Table("case", "of", "ours", "unit", "beside", title=about)
    for row in found["rows"]:
        of: list[str] = []
        beside: list[str] = []
        for name, value in row.items():
            if name in ("case", "ours", "unit") or value is None:
                continue
            is_size = name in SIZES
            (of if is_size else beside).append(str(value) if is_size else f"{name} {value}")
        table.add_row(row["case"], " ".join(of), str(row["ours"]), row["unit"], ", ".join(beside))
    console = Console()
    console.print(table)
    if "note" in found:
        console.print(found["note"])
