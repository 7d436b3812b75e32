"""A pool whose engine computes nothing: the process that `lockstep bench node` puts in its place.

python -m ingest.command.bench.free_engine STEP_MS

Everything around the engine is real: leases, journal, results. A step gives one token to each
request and takes STEP_MS, asleep, so that tokens reach the store as those of a real pool do.
"""

import sys
import time
from collections.abc import Sequence
from typing import Final

from workers.cost import CostModel
from workers.engine.engine import Output
from workers.engine.load import EngineLoad
from workers.queue.pulse import Pulse
from workers.queue.slot import take_slot
from workers.settings import settings
from workers.wire import EndEvent, Request, TokenEvent, Usage
from workers.worker_store import WorkerStore

BLOCKS: Final = 4096  # KV that nobody writes
LEAST_STEP_MS: Final = 0.05
TEXT: Final = " token"
DIGEST: Final = "0123456789abcdef"


class FreeEngine:
    """Follows workers.queue.runner.Runner."""

    is_stalled = False

    def __init__(self, step_s: float) -> None:
        self.step_s = step_s
        self.next_step_at = 0.0
        self.requests: dict[str, tuple[Request, int]] = {}  # with the number of tokens told

    def add(self, request: Request, journal: Sequence[TokenEvent] = (), /) -> None:
        self.requests[request.id] = (request, len(journal))

    def cancel(self, request_id: str) -> None:
        if request_id in self.requests:
            request = self.requests[request_id][0]
            self.requests[request_id] = (request, request.params.max_tokens)

    def promote(self, request_id: str, sla: str) -> None:
        """All are served alike."""

    def drop(self, request_id: str) -> None:
        self.requests.pop(request_id, None)

    def has_work(self) -> bool:
        return bool(self.requests)

    def step(self) -> list[Output]:
        """One token for each request; at once when none of them is in the middle of its answer."""
        if any(index for _, index in self.requests.values()):
            time.sleep(max(0.0, self.next_step_at - time.monotonic()))
        self.next_step_at = time.monotonic() + self.step_s
        return [output for request_id in list(self.requests) for output in self.advance(request_id)]

    def advance(self, request_id: str) -> list[Output]:
        request, index = self.requests[request_id]
        event = TokenEvent(index=index, token_id=1, text=TEXT, digest=DIGEST)
        outputs = [Output(request_id, event)] if index < request.params.max_tokens else []
        self.requests[request_id] = (request, index + 1)
        if index + 1 >= request.params.max_tokens:
            del self.requests[request_id]
            outputs.append(Output(request_id, ended(request)))
        return outputs

    def load(self) -> EngineLoad:
        return EngineLoad(
            running=len(self.requests),
            waiting=0,
            free_blocks=BLOCKS,
            total_blocks=BLOCKS,
            tokens_per_s=0.0,
            cost=CostModel(fixed_ms=max(1000 * self.step_s, LEAST_STEP_MS)),
            step_tokens=512,
        )

    def prepare(self, request: Request) -> None:
        """There is nothing that takes long."""

    def rest(self) -> None:
        """There is no memory to give back."""


def ended(request: Request) -> EndEvent:
    usage = Usage(prompt_tokens=len(request.token_ids), output_tokens=request.params.max_tokens)
    return EndEvent(status="finished", finish_reason="length", digest=DIGEST, usage=usage)


def main(step_ms: str) -> None:
    """Runs until SIGTERM."""
    config = settings()
    store = WorkerStore.of(config)  # before rq is imported: it reads its key prefix then
    from workers.queue.pool_worker import PoolWorker

    slot = take_slot(config.home, "cpu")
    worker = PoolWorker(
        store,
        "cpu",
        FreeEngine(float(step_ms) / 1000),
        name=slot.name,
        capacity=config.max_batch,
        pulse=Pulse(),
        model=config.model,
    )
    worker.work()


if __name__ == "__main__":
    main(*sys.argv[1:])
