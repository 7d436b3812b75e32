"""A pool's process with a fake engine: its arguments are those of main."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[3]), str(Path(__file__).parent)]

from workers.wire import Keys  # noqa: E402
from workers.worker_store import WorkerStore  # noqa: E402


def main(url, home, pool, lease_s, step_s, capacity):
    store = WorkerStore(url, Keys("lockstep"), lease_s=float(lease_s))
    from fake_engine import FakeEngine

    from workers.queue.pool_worker import PoolWorker
    from workers.queue.pulse import Pulse
    from workers.queue.runner import after_layer
    from workers.queue.slot import take_slot

    slot, pulse = take_slot(Path(home), pool), Pulse()
    engine = FakeEngine(after_layer(pulse), float(step_s))
    worker = PoolWorker(store, pool, engine, name=slot.name, capacity=int(capacity), pulse=pulse)
    worker.work()


if __name__ == "__main__":
    main(*sys.argv[1:])
