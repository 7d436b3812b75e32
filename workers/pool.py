"""A pool's process: `python -m workers.pool cpu` or `gpu`. One processor, one engine, one worker.

    absent    no GPU can be used here: said once, and why; the process sleeps
    failed    the GPU is full or has failed: said, and tried again after a while
    loading ──► ready ──the GPU fails──► requests are handed to the other pool; the process ends

Tried again means: the process ends and its keeper starts it, for a context that has failed stays
so. LOCKSTEP_GPU=emulate and =cpu do without a GPU (workers/processor.py).
"""

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Final

from redis.exceptions import RedisError

from workers.clock import now_ms
from workers.fleet.names import PROCESSORS, pool_name, processor_of
from workers.log import logger
from workers.settings import Settings, settings_or_exit
from workers.wire import PoolLoad
from workers.worker_store import WorkerStore

if TYPE_CHECKING:
    from kv_tier.chain import Chain
    from kv_tier.tier import KvTier
    from workers.engine.engine import Engine
    from workers.processor import Processor
    from workers.queue.pool_worker import PoolWorker
    from workers.text.text_model import TextModel

SAY_S: Final = 2.0  # between two reports of a pool that is not there
RETRY_S: Final = 15.0  # until a GPU that failed is tried again
FAILURE: Final = "gpu.failed"  # in LOCKSTEP_HOME/run: what the GPU's last user died of


def main(arguments: list[str]) -> int:
    """Run until SIGTERM, or until the device fails."""
    if len(arguments) != 1 or arguments[0] not in PROCESSORS:
        print(f"usage: python -m workers.pool {'|'.join(PROCESSORS)}", file=sys.stderr)
        return 2
    processor, config = arguments[0], settings_or_exit()
    missing = why_no_gpu(config) if processor == "gpu" else None
    if missing is not None:
        return stay_absent(config, missing)
    return serve(pool_name(processor, config.node), config)


def serve(pool: str, config: Settings) -> int:
    """Work, as long as the processor does.   pool: its full name"""
    from kernels.arrays import DeviceAbsent, DeviceError
    from workers.model.config import BadModel

    failure = config.home / "run" / FAILURE
    try:
        worker = build_worker(pool, config)
    except BadModel as error:
        logger(pool).error("no model", reason=str(error))
        return 1
    except DeviceAbsent as error:
        if failure.exists():  # it was there
            return stay_failed(config, f"{failure.read_text()}; now: {error}")
        return stay_absent(config, str(error))
    except DeviceError as error:
        return stay_failed(config, str(error))
    failure.unlink(missing_ok=True)
    worker.work()
    if worker.failure:
        note_failure(failure, worker.failure)
    return int(worker.crashed or bool(worker.failure))


def why_no_gpu(config: Settings) -> str | None:
    """Why there can be none, as far as that is seen without loading anything; None: try."""
    if config.gpu == "off":
        return "switched off"
    if config.gpu != "auto":
        return None
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no NVIDIA driver: libcuda.so.1 is missing"
    if find_spec("pycuda") is None:
        return "PyCUDA is not installed: pip install 'lockstep[gpu]'"
    return None


def stay_absent(config: Settings, note: str) -> int:
    """Say again and again that there is no such processor here.   note: why"""
    logger("gpu").info("no GPU pool", reason=note)
    say_until_stopped(config, "absent", note, None)
    return 0


def stay_failed(config: Settings, note: str) -> int:
    """Say that the processor cannot be used, and try again after a while."""
    logger("gpu").error("the GPU cannot be used", reason=note, tried_again_in_s=RETRY_S)
    return 0 if say_until_stopped(config, "failed", note, RETRY_S) else 1


def say_until_stopped(config: Settings, state: str, note: str, seconds: float | None) -> bool:
    """Report every few seconds; False: so many have passed."""
    stopped = Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    store = WorkerStore.of(config)
    gpu, worker = pool_name("gpu", config.node), f"{os.uname().nodename}-{state}"
    load = PoolLoad(pool=gpu, worker=worker, state=state, note=note)
    end = None if seconds is None else time.monotonic() + seconds
    while end is None or time.monotonic() < end:
        with suppress(RedisError):  # it comes back, or this process ends
            store.report(load)
        if stopped.wait(SAY_S):
            return True
    return False


def note_failure(path: Path, failure: str) -> None:
    """For the next process: there is a GPU, even if it does not see one."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(failure)


def build_worker(pool: str, config: Settings) -> "PoolWorker":
    """The model, its engine and the worker around it.

    Raises BadModel, DeviceAbsent, DeviceFull, DeviceLost.
    """
    store = WorkerStore.of(config)  # before rq is imported: it reads its key prefix then
    from workers.fleet.instance import weights_of
    from workers.queue.pool_worker import PoolWorker
    from workers.queue.pulse import Pulse
    from workers.queue.runner import after_layer
    from workers.queue.slot import take_slot
    from workers.session.backing import Backing
    from workers.session.files import find_remote

    slot, pulse = take_slot(config.home, pool), Pulse()
    with said_loading(store, pool, slot.name, config.model):
        tier = find_tier(pool, config)
        engine, text, state_slots = build_engine(pool, config, after_layer(pulse), tier)
    store.weights = weights_of(text.weights_digest)
    backing = None
    if tier is not None:
        backing = Backing(
            *(tier, engine, text, pulse),
            model=config.model,
            state_slots=state_slots,
            remote=find_remote(config, tier),
            idle_s=config.kv_store_idle_s,
        )
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


def build_engine(
    pool: str, config: Settings, after_layer: Callable[[], None], tier: "KvTier | None"
) -> "tuple[Engine, TextModel, int]":
    """A pool's engine with the configured model, its text side, and its number of state slots.

    Raises BadModel, DeviceAbsent, DeviceFull, DeviceLost.
    """
    from workers.engine.engine import Engine
    from workers.engine.limits import limits_of
    from workers.model.build import PACK
    from workers.model.catalog import ensure
    from workers.model.pack import Weights
    from workers.processor import open_processor
    from workers.text.text_model import TextModel

    kind = processor_of(pool)
    processor = open_processor(kind, config)
    folder = ensure(config.home, config.model, progress=None)
    shape = Weights.open(folder / PACK).config
    model = processor.load_model(folder, limits_of(config, shape), config)
    limits = limits_of(config, shape, processor.kv_budget(config))
    text = TextModel.load(folder)

    def chain(tenant: str) -> "Chain":
        assert tier is not None
        return tier.chain(tenant, engine.sizes.fingerprint)

    engine = Engine(
        model,
        text,
        processor.ops,
        limits,
        after_layer=after_layer,
        now_ms=now_ms,
        chain=None if tier is None else chain,
        arrays=processor.arrays,
        table=config.classes,
        timer=time.monotonic,
    )
    if config.calibrate == "auto":
        calibrate(kind, config, engine, text, processor)
    return engine, text, 0 if model.config.state is None else limits.state_slots


def calibrate(
    pool: str, config: Settings, engine: "Engine", text: "TextModel", processor: "Processor"
) -> None:
    """The engine knows what its steps cost, before its first request."""
    from workers.engine.calibrate import calibrated

    digest, machine = text.weights_digest, processor.machine(config)
    engine.start_from(
        calibrated(engine, config.home, pool=pool, weights_digest=digest, machine=machine)
    )


@contextmanager
def said_loading(store: WorkerStore, pool: str, worker: str, model: str) -> Iterator[None]:
    """Meanwhile it is said that the pool is loading, for as long as a large model takes."""
    load, loaded = PoolLoad(pool=pool, worker=worker, state="loading", model=model), Event()

    def say() -> None:
        while True:
            with suppress(RedisError):  # the store starts beside us; work() waits for it
                store.report(load)
            if loaded.wait(SAY_S):
                return

    thread = Thread(target=say, name="loading", daemon=True)
    thread.start()
    try:
        yield
    finally:
        loaded.set()
        thread.join()  # so that nothing of it comes after "ready"


if __name__ == "__main__":
    os._exit(main(sys.argv[1:]))  # at once: taking the interpreter apart costs up to a second
