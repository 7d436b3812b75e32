"""Time to the first token of a long prompt: computed, and resumed from files in RAM and on disk.

    python tests/bench/bench_resume.py [--tokens 1024,7936] [--rounds 5] [--threads N]

The default model. A first engine computes the prompt and its KV is written; then, in turns, a fresh
engine computes the same prompt, resumes it from the page cache, and from the cold disk.
"""

import argparse
import os
import shutil
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np

from kernels.cpu.host import CpuOps
from kv_tier.tier import KvTier, TierLimits
from workers.engine.engine import Engine
from workers.engine.kept import Kept
from workers.engine.limits import EngineLimits
from workers.model import catalog
from workers.model.build import Model, load_model
from workers.text.text_model import TextModel
from workers.wire import Request, SamplingParams, TokenEvent

HOME = Path(__file__).parents[2] / "build" / "test-home"
MODEL = "smollm2-135m"
BLOCK_TOKENS, TENANT = 256, "default"
OVERHEAD_MS, GOAL_GB_PER_S = 20.0, 10.0  # a resume from the page cache: so much, and the bytes


class Bench:
    """One model, one folder of files, and a fresh engine for each measurement."""

    def __init__(self, root: Path, threads: int, tokens: int) -> None:
        folder = catalog.ensure(HOME, MODEL, progress=None)
        self.ops, self.text = CpuOps(threads), TextModel.load(folder)
        self.model: Model = load_model(folder, self.ops, max_step_tokens=512, max_logit_rows=1)
        self.tier, self.tokens = KvTier(root, TierLimits()), tokens
        ids = np.random.default_rng(7).integers(100, 40_000, tokens + 1)
        self.token_ids = tuple(ids.tolist())

    def engine(self) -> Engine:
        engine = Engine(
            self.model,
            self.text,
            self.ops,
            EngineLimits(1, 512, 100_000, self.tokens // BLOCK_TOKENS + 2, chunk=512),
            after_layer=lambda: None,
            now_ms=lambda: time.time_ns() // 10**6,
            chain=lambda tenant: self.tier.chain(tenant, engine.sizes.fingerprint),
        )
        return engine

    def request(self) -> Request:
        params = SamplingParams(max_tokens=1, temperature=0.0)
        fields = {"id": "r", "model": MODEL, "token_ids": self.token_ids, "arrival_ms": 0}
        return Request(**fields, params=params)

    def computed(self) -> float:
        return self.seconds(self.engine(), fetches=False)

    def resumed(self) -> float:
        return self.seconds(self.engine(), fetches=True)

    def seconds(self, engine: Engine, *, fetches: bool) -> float:
        begin = time.perf_counter()
        prefix = None
        if fetches:
            prefix = self.tier.fetch(
                self.tier.chain(TENANT, engine.sizes.fingerprint),
                self.token_ids,
                engine.sizes,
                ends=(self.tokens,),
                resident=engine.resident,
                prefill_tokens_per_s=0.0,
            )
            assert prefix.end == self.tokens, prefix.end
        engine.add(self.request(), prefix=prefix)
        while not any(isinstance(output.event, TokenEvent) for output in engine.step()):
            pass
        return time.perf_counter() - begin

    def written(self, rounds: int) -> tuple[int, float, float]:
        """Bytes of the prompt's KV; median seconds to write and sync them, as files and plainly."""
        engine = self.engine()
        kept = kept_of(engine, self.request())
        as_files, plainly, num_bytes = list[float](), list[float](), 0
        for _ in range(rounds):
            for source in engine.sources(kept, state=True):
                self.tier.objects.drop(source.kind, source.key)
            begin = time.perf_counter()
            num_bytes = self.tier.put(TENANT, engine.sources(kept, state=True))
            as_files.append(time.perf_counter() - begin)
            plainly.append(self.plain_write(num_bytes))
        return num_bytes, median(as_files), median(plainly)

    def plain_write(self, num_bytes: int) -> float:
        """Seconds to write one new file of so many bytes and sync it."""
        piece, path = bytes(1 << 20), self.tier.root / "plain"
        begin = time.perf_counter()
        fd = os.open(path, os.O_WRONLY | os.O_CREAT)
        os.posix_fallocate(fd, 0, num_bytes)
        for at in range(0, num_bytes, len(piece)):
            os.pwrite(fd, piece[: num_bytes - at], at)
        os.fdatasync(fd)
        os.close(fd)
        seconds = time.perf_counter() - begin
        path.unlink()
        return seconds

    def chill(self) -> None:
        """The files leave the page cache."""
        for path in (self.tier.root / "objects").rglob("*.*"):
            fd = os.open(path, os.O_RDONLY)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


def kept_of(engine: Engine, request: Request) -> Kept:
    engine.add(request, keep=True)
    while True:
        for output in engine.step():
            if output.kept is not None:
                return output.kept


def measure(bench: Bench, rounds: int) -> None:
    num_bytes, write_s, plain_s = bench.written(rounds)
    took: dict[str, list[float]] = {"computed": [], "page cache": [], "cold disk": []}
    for _ in range(rounds):
        took["computed"].append(bench.computed())
        took["page cache"].append(bench.resumed())
        bench.chill()
        took["cold disk"].append(bench.resumed())
    goal_ms = OVERHEAD_MS + num_bytes / GOAL_GB_PER_S / 1e6
    print(f"{bench.tokens} tokens, {num_bytes / 1e6:.0f} MB, ", end="")
    print(f"written at {num_bytes / write_s / 1e9:.2f} GB/s", end=", ")
    print(f"{plain_s / write_s:.2f} of a plain write; goal of the page cache {goal_ms:.0f} ms")
    for name, seconds in took.items():
        least, most = min(seconds) * 1e3, max(seconds) * 1e3
        print(f"  {name:12} {median(seconds) * 1e3:8.1f} ms  ({least:.1f} to {most:.1f})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", default="1024,7936")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    arguments = parser.parse_args()
    for tokens in map(int, arguments.tokens.split(",")):
        root = Path(tempfile.mkdtemp(prefix="bench-resume-", dir=Path.cwd()))
        try:
            measure(Bench(root, arguments.threads, tokens), arguments.rounds)
        finally:
            shutil.rmtree(root)


if __name__ == "__main__":
    main()
