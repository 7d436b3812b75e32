"""A pool that computes nothing: it claims, tells tokens and ends, by the real scripts.

One thread. A step lasts as long as its cost model says and gives each request that it holds one
token; all of a step is told in one call, as a pool's emitter does. Beside the steps it does what a
pool's bookkeeper does: reports, beats, looks for leases of the dead.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import msgspec

from workers.cost import CostModel
from workers.queue.bookkeeper import MAINTENANCE_S, ROUND_S
from workers.queue.listener import BELL_S
from workers.wire import EndEvent, PoolLoad, Request, TokenEvent, Usage
from workers.worker_store import Claimed, Said, WorkerStore

FINISHED: Final = EndEvent(status="finished", finish_reason="length")
BLOCKS: Final = 512


@dataclass(slots=True)
class Running:
    """A request that is held, and how many tokens it has."""

    item: Claimed
    request: Request
    made: int = 0

    @property
    def is_over(self) -> bool:
        return self.made >= self.request.params.max_tokens


@dataclass(slots=True)
class FakePool:
    """The cpu pool of a node.   cost: what it says of itself, and how long its steps last"""

    store: WorkerStore
    model: str
    cost: CostModel
    places: int
    stopping: Callable[[], bool]
    running: dict[str, Running] = field(default_factory=dict)
    num_steps: int = 0

    @property
    def name(self) -> str:
        return self.store.keys.own_pools[1]

    @property
    def worker(self) -> str:
        return f"{self.name}-0"

    def serve(self) -> None:
        """Until it is asked to stop. The bell is waited for as long as nothing else is to do."""
        bell = self.store.blocking(BELL_S)
        report_at = beat_at = tidy_at = 0.0
        self.store.reap(self.name)
        while not self.stopping():
            now = time.monotonic()
            if now >= report_at:
                report_at = now + ROUND_S
                self.store.report(self.load())
            if now >= beat_at:
                beat_at = now + self.store.lease_s / 3
                self.store.beat(self.name, self.worker, [r.item for r in self.running.values()])
            if now >= tidy_at:
                tidy_at = now + MAINTENANCE_S
                self.store.reap(self.name)
            if self.running:
                self.step()
                if self.rings(bell, None):
                    self.claim()
            elif self.rings(bell, report_at - time.monotonic()):
                self.claim()
        self.store.hand_back(self.name, [r.item for r in self.running.values()])

    def rings(self, bell: object, wait_s: float | None) -> bool:
        """Whether somebody has put something into the queue.   wait_s None: not waited for"""
        key = self.store.keys.bell(self.name)
        if wait_s is None:
            return len(self.running) < self.places and bool(bell.lpop(key))
        return bell.blpop([key], timeout=max(0.01, wait_s)) is not None

    def claim(self) -> None:
        room = self.places - len(self.running)
        for item in self.store.claim(self.name, self.worker, room, idle=not self.running):
            request = item.request
            assert request is not None
            if request.session_id is not None and not request.composed:
                prompt = msgspec.structs.replace(request, token_ids=(1, 2, 3), composed=True)
                assert self.store.compose(item, prompt)
            self.running[item.job_id] = Running(item, request)

    def step(self) -> None:
        """One token more for each; those that have all of theirs end, in the same call."""
        time.sleep(self.cost.step_ms(len(self.running)) / 1000)
        self.num_steps += 1
        said = [self.say(one) for one in self.running.values()]
        for one in said:
            if one.end is not None:
                del self.running[one.item.job_id]
        self.store.tell(self.name, self.worker, said)

    def say(self, one: Running) -> Said:
        token = TokenEvent(index=one.made, token_id=1, text="x", digest=f"{one.made:016x}")
        one.made += 1
        if not one.is_over:
            return Said(one.item, [token])
        usage = Usage(prompt_tokens=len(one.request.token_ids), output_tokens=one.made)
        end = msgspec.structs.replace(FINISHED, usage=usage, digest=token.digest, ttft_ms=1.0)
        return Said(one.item, [token], end, "x" * one.made)

    def load(self) -> PoolLoad:
        return PoolLoad(
            pool=self.name,
            worker=self.worker,
            state="ready",
            model=self.model,
            running=len(self.running),
            capacity=self.places,
            progress=self.num_steps,
            free_blocks=BLOCKS - len(self.running),
            total_blocks=BLOCKS,
            cost=self.cost,
            decoding=len(self.running),
            by_class={},
        )
