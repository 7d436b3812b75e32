"""Plain RQ beside us: a process that queues jobs which do nothing, and one that works them off.

python -m ingest.command.bench.rq_peer URL simple|forking JOBS

RQ's own worker, stock but for its serializer: SimpleWorker runs jobs in its process, Worker forks
one for each. Prints one JSON object: seconds from the first job queued to the last one finished,
and CPU microseconds of the worker and of its children. RQ_KEY_PREFIX keeps its keys apart.
"""

import json
import os
import resource
import subprocess
import sys
import time
from typing import Final

from redis import Redis
from rq import Queue, SimpleWorker, Worker
from rq.serializers import JSONSerializer

QUEUE: Final = "peer"
PIPELINED: Final = 100  # jobs queued by one call
LOOK_S: Final = 0.02
WORKERS: Final = {"simple": SimpleWorker, "forking": Worker}


def nothing(prompt: str) -> str:
    """The job."""
    return prompt


def work(url: str, kind: str) -> None:
    """Until SIGTERM."""
    redis = Redis.from_url(url)
    queue = Queue(QUEUE, connection=redis, serializer=JSONSerializer)
    worker = WORKERS[kind]([queue], connection=redis, serializer=JSONSerializer)
    worker.work(logging_level="ERROR")


def enqueue(queue: Queue, prompt: str, jobs: int) -> None:
    data = [Queue.prepare_data(nothing, (prompt,)) for _ in range(jobs)]
    for begin in range(0, jobs, PIPELINED):
        queue.enqueue_many(data[begin : begin + PIPELINED])


def measure(url: str, kind: str, jobs: int) -> dict[str, float]:
    """Wall time of all jobs; the worker is there before the first one."""
    queue = Queue(QUEUE, connection=Redis.from_url(url), serializer=JSONSerializer)
    before = queue.finished_job_registry.get_job_count(cleanup=False)
    command = [sys.executable, "-m", "ingest.command.bench.rq_peer", url, kind]
    process = subprocess.Popen(command)
    try:
        while not Worker.count(queue=queue):
            time.sleep(LOOK_S)
        begin = time.perf_counter()
        enqueue(queue, "What is the capital of France?", jobs)
        while queue.finished_job_registry.get_job_count(cleanup=False) < before + jobs:
            time.sleep(LOOK_S)
        seconds = time.perf_counter() - begin
    finally:
        process.terminate()
        process.wait()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {"seconds": seconds, "worker_cpu_us": (used.ru_utime + used.ru_stime) * 1e6}


if __name__ == "__main__":
    if len(sys.argv) == 3:
        work(sys.argv[1], sys.argv[2])
        os._exit(0)
    print(json.dumps(measure(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
