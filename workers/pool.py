"""A pool's process: `python -m workers.pool cpu` or `gpu`. One processor, one engine, one worker.

The gpu pool of a machine without a GPU says "absent" and sleeps, unless LOCKSTEP_GPU=cpu, where a
second CPU engine stands in for it, or LOCKSTEP_GPU=emulate, where the GPU's own kernels run on the
CPU: the same bits, some hundred times slower, for tests.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from redis.exceptions import RedisError

from workers.log import logger
from workers.settings import Settings, settings
from workers.wire import POOLS, PoolLoad
from workers.worker_store import WorkerStore

if TYPE_CHECKING:
    from kernels.ops import Ops
    from kv_tier.chain import Chain
    from kv_tier.tier import KvTier
    from workers.engine.engine import Engine
    from workers.queue.pool_worker import PoolWorker
    from workers.text.text_model import TextModel

ABSENT_S: Final = 2.0  # between two reports of a pool that is not there


def main(arguments: list[str]) -> int:
    """Run until SIGTERM."""
    if len(arguments) != 1 or arguments[0] not in POOLS:
        print(f"usage: python -m workers.pool {'|'.join(POOLS)}", file=sys.stderr)
        return 2
    pool, config = arguments[0], settings()
    if pool == "gpu" and config.gpu in ("auto", "off"):
        is_off = config.gpu == "off"
        return stay_absent(config, "switched off" if is_off else "no GPU that can be used")
    from kernels.cuda.emulate.build import NoCompiler
    from workers.model.config import BadModel

    try:
        worker = build_worker(pool, config)
    except NoCompiler as error:
        return stay_absent(config, str(error))
    except BadModel as error:
        logger(pool).error("no model", reason=str(error))
        return 1
    worker.work()
    return int(worker.crashed)


def stay_absent(config: Settings, note: str) -> int:
    """Say again and again that there is no such processor here.   note: why"""
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    logger("gpu").info("no GPU pool", reason=note)
    store = WorkerStore.of(config)
    load = PoolLoad(pool="gpu", worker=f"{os.uname().nodename}-absent", state="absent", note=note)
    while not stopped.wait(ABSENT_S):
        with suppress(RedisError):  # it comes back, or this process ends
            store.report(load)
    return 0


def build_worker(pool: str, config: Settings) -> "PoolWorker":
    """The model, its engine and the worker around it. Raises BadModel, NoCompiler."""
    store = WorkerStore.of(config)  # before rq is imported: it reads its key prefix then
    from workers.queue.pool_worker import PoolWorker, after_layer
    from workers.queue.pulse import Pulse
    from workers.queue.slot import take_slot
    from workers.session.backing import Backing

    slot, pulse = take_slot(config.home, pool), Pulse()
    say_loading(store, pool, slot.name, config.model)
    tier = find_tier(pool, config)
    engine, text, state_slots = build_engine(pool, config, after_layer(pulse), tier)
    backing = None
    if tier is not None:
        backing = Backing(tier, engine, text, pulse, model=config.model, state_slots=state_slots)
    return PoolWorker(
        store,
        pool,
        engine,
        name=slot.name,
        capacity=config.max_batch,
        pulse=pulse,
        model=config.model,
        backing=backing,
    )


def find_tier(pool: str, config: Settings) -> "KvTier | None":
    """The files behind this node's engines; None: the disk has no place for them."""
    from kv_tier.files import DiskError
    from workers.session.files import open_tier

    try:
        return open_tier(config)
    except (DiskError, OSError) as error:
        logger(pool).error("no sessions: the folder of KV cannot be used", reason=str(error))
        return None


def ops_of(pool: str, config: Settings) -> "Ops":
    """The arithmetic of a pool. Raises NoCompiler."""
    if pool == "gpu" and config.gpu == "emulate":
        from kernels.cuda.emulate.host import emulated_ops

        return emulated_ops()
    from kernels.cpu.host import CpuOps

    return CpuOps(config.num_threads)


def build_engine(
    pool: str, config: Settings, after_layer: Callable[[], None], tier: "KvTier | None"
) -> "tuple[Engine, TextModel, int]":
    """A pool's engine with the configured model, its text side, and its number of state slots.

    Raises BadModel, NoCompiler.
    """
    from workers.engine.engine import Engine
    from workers.engine.limits import limits_of
    from workers.model.build import PACK, load_model
    from workers.model.catalog import ensure
    from workers.model.pack import Weights
    from workers.text.text_model import TextModel

    folder = ensure(config.home, config.model, progress=None)
    limits = limits_of(config, Weights.open(folder / PACK).config)
    ops = ops_of(pool, config)
    model = load_model(
        folder,
        ops,
        max_step_tokens=limits.max_step_tokens,
        max_logit_rows=limits.max_batch,
        in_huge_pages=config.huge_pages,
    )
    text = TextModel.load(folder)

    def chain(tenant: str) -> "Chain":
        assert tier is not None
        return tier.chain(tenant, engine.sizes.fingerprint)

    engine = Engine(
        model,
        text,
        ops,
        limits,
        after_layer=after_layer,
        now_ms=now_ms,
        chain=None if tier is None else chain,
    )
    return engine, text, 0 if model.config.state is None else limits.state_slots


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def say_loading(store: WorkerStore, pool: str, worker: str, model: str) -> None:
    """Once: a model that takes longer than that to load is not ready anyway."""
    with suppress(RedisError):  # the store starts beside us; work() waits for it
        store.report(PoolLoad(pool=pool, worker=worker, state="loading", model=model))


if __name__ == "__main__":
    os._exit(main(sys.argv[1:]))  # at once: taking the interpreter apart costs up to a second
