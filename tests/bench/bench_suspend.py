"""How long a decode step takes while a session is written to disk, and while none is.

    python tests/bench/bench_suspend.py [--tokens 4096] [--beside 8] [--threads N]

The default model decodes `beside` sequences; meanwhile another thread writes the KV of one session
of so many tokens over and over, as the pool's writer does. Milliseconds per step.
"""

import argparse
import os
import shutil
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from kernels.cpu.host import CpuOps
from kv_tier.tier import KvTier, TierLimits
from workers.engine.engine import Engine
from workers.engine.kept import Kept
from workers.engine.limits import EngineLimits
from workers.model import catalog
from workers.model.build import load_model
from workers.session.writer import step_aside
from workers.text.text_model import TextModel
from workers.wire import EndEvent, Request, SamplingParams

HOME = Path(__file__).parents[2] / "build" / "test-home"
MODEL = "smollm2-135m"
BLOCK_TOKENS, MAX_TOKENS = 256, 1200


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--beside", type=int, default=8)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    arguments = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="bench-suspend-", dir=Path.cwd()))
    try:
        measure(arguments, KvTier(root, TierLimits()))
    finally:
        shutil.rmtree(root)


def measure(arguments: argparse.Namespace, tier: KvTier) -> None:
    engine = make_engine(arguments, tier)
    kept = keep(engine, arguments.tokens)
    for number in range(arguments.beside):
        engine.add(request(f"r{number}", 40, MAX_TOKENS))
    steps(engine, 30)
    show("nothing written", steps(engine, arguments.steps), 0.0)
    writer = Writer(engine, tier, kept)
    begin = time.monotonic()
    writer.start()
    during = steps(engine, arguments.steps)
    writer.stopped.set()
    writer.join()
    seconds = time.monotonic() - begin
    show("while KV is written", during, writer.num_bytes / seconds / 1e6)


class Writer(threading.Thread):
    """Writes what a sequence left behind, takes it away and writes it again, until stopped."""

    def __init__(self, engine: Engine, tier: KvTier, kept: Kept) -> None:
        super().__init__()
        self.engine, self.tier, self.kept = engine, tier, kept
        self.stopped, self.num_bytes = threading.Event(), 0

    def run(self) -> None:
        step_aside()
        while not self.stopped.is_set():
            sources = list(self.engine.sources(self.kept, state=True))
            self.num_bytes += self.tier.put("default", sources)
            for source in sources:
                self.tier.objects.drop(source.kind, source.key)


def make_engine(arguments: argparse.Namespace, tier: KvTier) -> Engine:
    folder = catalog.ensure(HOME, MODEL, progress=None)
    ops, text = CpuOps(arguments.threads), TextModel.load(folder)
    batch = arguments.beside + 1
    model = load_model(folder, ops, max_step_tokens=512, max_logit_rows=batch)
    num_blocks = arguments.tokens // BLOCK_TOKENS + 2 + batch * 8
    engine = Engine(
        model,
        text,
        ops,
        EngineLimits(batch, 512, 100_000, num_blocks),
        after_layer=lambda: None,
        now_ms=lambda: time.time_ns() // 10**6,
        chain=lambda tenant: tier.chain(tenant, engine.sizes.fingerprint),
    )
    return engine


def request(request_id: str, num_tokens: int, max_tokens: int) -> Request:
    ids = np.random.default_rng(len(request_id)).integers(100, 40_000, num_tokens).tolist()
    params = SamplingParams(max_tokens=max_tokens, temperature=1.0, seed=int.from_bytes(b"s"))
    return Request(id=request_id, model=MODEL, token_ids=tuple(ids), arrival_ms=0, params=params)


def keep(engine: Engine, num_tokens: int) -> Kept:
    """What a sequence of so many tokens leaves behind."""
    engine.add(request("kept", num_tokens, 1), keep=True)
    while True:
        for output in engine.step():
            if output.kept is not None:
                return output.kept


def steps(engine: Engine, count: int) -> list[float]:
    """Milliseconds of so many steps."""
    took_ms = []
    while len(took_ms) < count:
        begin = time.perf_counter()
        outputs = engine.step()
        took_ms.append((time.perf_counter() - begin) * 1e3)
        for output in outputs:
            if isinstance(output.event, EndEvent):  # another one in its place, not measured
                engine.add(request(output.request_id, 40, MAX_TOKENS))
                engine.step()
    return took_ms


def show(what: str, took_ms: list[float], mb_per_s: float) -> None:
    p50, p90, p99 = np.percentile(took_ms, (50, 90, 99))
    times = f"p50 {p50:7.2f}  p90 {p90:7.2f}  p99 {p99:7.2f}  max {max(took_ms):7.2f}"
    print(f"{what:20} {times}" + (f"  {mb_per_s:7.0f} MB/s" if mb_per_s else ""))


if __name__ == "__main__":
    main()
