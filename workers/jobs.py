"""The functions that RQ's records name; our workers never call them, they run many jobs at once.

A stock RQ worker that listens to one of our queues by mistake gets the sentence below; the job
itself is put back by the pool's maintenance.
"""


def generate(request_id: str) -> None:
    """A request, run by a pool (workers.queue.pool_worker)."""
    raise RuntimeError(f"{request_id}: run by `python -m workers.pool`, not by a stock RQ worker")


def deliver(request_id: str) -> None:
    """One attempt to post a request's webhook (workers.webhook)."""
    raise RuntimeError(
        f"{request_id}: posted by `python -m workers.webhook`, not by a stock RQ worker"
    )
