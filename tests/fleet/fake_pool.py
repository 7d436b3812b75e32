"""A pool's process that computes nothing, so many places and so many milliseconds a step."""

import sys
from pathlib import Path

from tests.workers.queue.fake_engine import FakeEngine
from workers.wire import Keys
from workers.worker_store import WorkerStore


def main(url: str, prefix: str, node: str, home: str, model: str, places: str, step_s: str) -> None:
    store = WorkerStore(url, Keys(prefix, node=node), lease_s=3.0)
    from workers.queue.pool_worker import PoolWorker
    from workers.queue.pulse import Pulse
    from workers.queue.runner import after_layer
    from workers.queue.slot import take_slot

    pool, pulse = f"cpu@{node}", Pulse()
    slot, engine = take_slot(Path(home), pool), FakeEngine(after_layer(pulse), float(step_s))
    PoolWorker(
        store, pool, engine, name=slot.name, capacity=int(places), pulse=pulse, model=model
    ).work()


if __name__ == "__main__":
    main(*sys.argv[1:])
