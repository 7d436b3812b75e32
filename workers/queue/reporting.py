"""What a pool says of itself each second, out of what its engine and its threads count."""

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol

import msgspec

from kv_tier.prefix import Sizes
from workers.clock import now_ms
from workers.cost import CostModel
from workers.engine.lately import Lately
from workers.engine.load import EngineLoad
from workers.queue.pulse import Pulse
from workers.wire import PoolLoad
from workers.worker_store import Claimed, WorkerStore

LOAD_S: Final = 0.5  # how old what an engine says of itself may be


def with_files(
    cost: CostModel | None, sizes: Sizes | None, kv: Mapping[str, float]
) -> CostModel | None:
    """What steps cost, with what it costs to bring KV to files and back; kv: the tier's counts."""
    if cost is None or sizes is None:
        return cost
    written_bytes = kv.get("suspended_bytes", 0.0) + kv.get("behind_bytes", 0.0)
    written_s = kv.get("suspended_s", 0.0) + kv.get("behind_s", 0.0)
    return msgspec.structs.replace(
        cost,
        kv_bytes_per_token=sizes.token_bytes,
        state_bytes=sizes.state_bytes,
        write_bytes_per_s=written_bytes / written_s if written_s > 0 else 0.0,
        read_bytes_per_s=kv.get("cache_bytes_per_s", 0.0),  # just written, so in RAM
    )


def with_load(
    told: PoolLoad,
    load: EngineLoad,
    cost: CostModel | None,
    classes: Iterable[str],
    lately: Lately,
    now_ms: float,
) -> PoolLoad:
    """The worker's own words and the engine's.

    classes  of all that is claimed
    now_ms   by any clock, the same each time
    """
    prompts_per_s, outputs_per_s = lately.rates(load.prefilled, now_ms)
    return msgspec.structs.replace(
        told,
        waiting=load.waiting,
        free_blocks=load.free_blocks,
        total_blocks=load.total_blocks,
        tokens_per_s=load.tokens_per_s,
        cost=cost,
        step_tokens=load.step_tokens,
        budget_ms=load.budget_ms,
        decoding=load.decoding,
        context_tokens=load.context_tokens,
        prefill_tokens=sum(load.prefill_by_class.values()),
        prefill_by_class=load.prefill_by_class,
        waiting_blocks=load.waiting_blocks,
        output_tokens=dict(lately.output_tokens),
        by_class=dict(Counter(classes)),
        prompts_per_s=prompts_per_s,
        outputs_per_s=outputs_per_s,
        step_ms=load.step_ms,
        batch=load.batch,
        histograms=load.histograms,
    )


class Worker(Protocol):
    """What is told of a pool's worker."""

    store: WorkerStore
    queue_name: str
    name: str
    held: dict[str, Claimed]
    capacity: int
    pulse: Pulse
    failure: str

    def class_of(self, item: Claimed) -> str: ...


class Reporter:
    """One worker's.   model: its name"""

    def __init__(self, worker: Worker, model: str, load: EngineLoad) -> None:
        self.worker, self.model = worker, model
        self.load = load
        self.loaded_at = 0.0
        self.lately = Lately()
        self.began_ms = now_ms()

    def take(self, load: EngineLoad) -> None:
        """The engine belongs to the main thread; the bookkeeper reports this copy."""
        self.load, self.loaded_at = load, time.monotonic()

    def is_stale(self) -> bool:
        return time.monotonic() - self.loaded_at > LOAD_S

    def report(self, held: Sequence[Claimed], kv: dict[str, float], sizes: Sizes | None) -> None:
        """Say it. held: what is claimed   kv: what the tier counts   sizes: None: there is none"""
        worker, load = self.worker, self.load
        told = PoolLoad(
            pool=worker.queue_name,
            worker=worker.name,
            state=self.state(),
            note=worker.failure,
            began_ms=self.began_ms,
            model=self.model,
            running=len(held),
            capacity=worker.capacity,
            progress=worker.pulse.moves,
            kv=kv,
        )
        classes, mono_ms = map(worker.class_of, held), 1000 * time.monotonic()
        cost = with_files(load.cost, sizes, kv)
        worker.store.report(with_load(told, load, cost, classes, self.lately, mono_ms))

    def state(self) -> str:
        if self.worker.failure:
            return "failed"
        return "stopping" if self.worker.pulse.stopping else "ready"
