"""A pool's process whose steps take at least so many seconds: `slow_pool.py POOL STEP_S`."""

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from workers.pool import build_worker
from workers.settings import settings


def main(pool: str, step_s: str) -> int:
    worker = build_worker(pool, settings())
    step = worker.engine.step

    def slow_step():
        time.sleep(float(step_s))
        return step()

    worker.engine.step = slow_step
    worker.work()
    return int(worker.crashed)


if __name__ == "__main__":
    os._exit(main(*sys.argv[1:]))
