"""What this machine can do at most: bytes read and int8 multiply-adds a second, by probe.c.

Rates are taken in each thread's own processor time, so other work on the machine counts little.
"""

import ctypes
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Final

import numpy as np

from ingest.command.failure import Failure

SOURCE: Final = Path(__file__).parents[3] / "tests" / "bench" / "probe.c"
READ_BYTES: Final = 256 << 20  # larger than the caches of a core
ROUNDS: Final = 1_000_000
RUNS: Final = 9


def measure_limits(threads: int = 2) -> dict[str, float]:
    """read_gb_per_s of all threads together, maddubs_gmacs_per_core of one. Raises Failure."""
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "probe.so"
        command = ["gcc", "-O3", "-shared", "-fPIC", str(SOURCE), "-o", str(library)]
        try:
            subprocess.run(command, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise Failure(f"the probe {SOURCE} cannot be compiled: {error}") from None
        probe = ctypes.CDLL(str(library))
    probe.probe_read.restype = probe.probe_maddubs.restype = ctypes.c_double

    def rates(_: int) -> tuple[float, float]:
        data = np.ones(READ_BYTES, np.uint8)
        address, size = ctypes.c_void_p(data.ctypes.data), ctypes.c_long(data.size)
        read = median(probe.probe_read(address, size) for _ in range(RUNS))
        return read, median(probe.probe_maddubs(ctypes.c_long(ROUNDS)) for _ in range(RUNS))

    with ThreadPoolExecutor(threads) as pool:
        found = list(pool.map(rates, range(threads)))
    return {
        "read_gb_per_s": round(sum(read for read, _ in found) / 1e9, 1),
        "maddubs_gmacs_per_core": round(median(macs for _, macs in found) / 1e9, 1),
    }
