"""The engine that computes nothing, under a real worker: what `lockstep bench node` measures by."""

from ingest.command.bench.free_engine import TEXT, FreeEngine
from workers.queue.pool_worker import PoolWorker
from workers.queue.pulse import Pulse


def test_a_worker_runs_it_to_the_end_of_a_request(node):
    node.route("r1", max_tokens=3)
    engine = FreeEngine(0.0)
    worker = PoolWorker(node.store, "cpu", engine, name="w", capacity=8, pulse=Pulse())
    worker.claim()
    worker.handle(worker.inbox.get())
    while worker.has_work():
        worker.advance()
    worker.emitter.start()
    worker.emitter.flush(20)
    job = node.store.job("r1")
    assert (job["status"], job["text"]) == ("finished", 3 * TEXT)
