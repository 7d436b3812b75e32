"""A model, a folder of KV and engines over both: what `lockstep bench kv` measures with.

KV is computed where that takes seconds, and made up where it would take minutes: neither the disk
nor attention cares what the numbers are. An engine that was just made knows nothing; the files may
be in the page cache, or not.
"""

import gc
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from ingest.command.bench.cases import STEP_TOKENS, prompt
from kernels.cpu.host import CpuOps
from kernels.ops import BLOCK_TOKENS
from kv_tier.budget import TierLimits
from kv_tier.objects import Source
from kv_tier.tier import KvTier, wall_ms
from workers.engine.engine import Engine
from workers.engine.limits import EngineLimits, blocks_for
from workers.engine.payload import sizes_of
from workers.model.build import load_model
from workers.text.text_model import TextModel
from workers.wire import EndEvent, Request, SamplingParams, TokenEvent

NEW_TOKENS: Final = 16  # of the turn that goes on, at the end of its prompt
BATCH: Final = 4
SPARE_BLOCKS: Final = 32


@dataclass(frozen=True, slots=True)
class First:
    """What came before a first token, in seconds; cached: prompt tokens that were not computed."""

    seconds: float
    fetch_s: float
    cached: int


class Seat:
    """One model; engines are made and thrown away."""

    def __init__(self, folder: Path, root: Path, threads: int, max_tokens: int) -> None:
        """root: where KV lies. max_tokens: of the longest session."""
        self.tier = KvTier(root, TierLimits())
        self.text = TextModel.load(folder)
        self.text.end_ids = frozenset()  # a sequence that ended early would not be measured
        self.text.context_length = max_tokens + BATCH * STEP_TOKENS
        self.ops = CpuOps(threads)
        self.model = load_model(
            folder, self.ops, max_step_tokens=STEP_TOKENS + BATCH, max_logit_rows=BATCH
        )
        self.sizes = sizes_of(self.model.config, self.text.weights_digest)
        self.num_blocks = blocks_for(max_tokens) + SPARE_BLOCKS
        self._num_requests = 0

    def engine(self) -> Engine:
        """One that knows nothing. Memory of those before it goes, once nobody has them."""
        gc.collect()
        limits = EngineLimits(BATCH, STEP_TOKENS + BATCH, 1, self.num_blocks, STEP_TOKENS)
        return Engine(
            self.model,
            self.text,
            self.ops,
            limits,
            after_layer=lambda: None,
            now_ms=wall_ms,
            chain=lambda tenant: self.tier.chain(tenant, self.sizes.fingerprint),
        )

    def request(self, token_ids: Sequence[int], tenant: str, max_tokens: int = 1) -> Request:
        self._num_requests += 1
        return Request(
            id=f"bench-{self._num_requests}",
            tenant=tenant,
            model=self.text.name,
            token_ids=tuple(token_ids),
            arrival_ms=0,
            params=SamplingParams(max_tokens=max_tokens, temperature=0.0),
        )

    def token_ids(self, num_tokens: int, number: int = 0) -> list[int]:
        """Without meaning; another number gives others."""
        return prompt(number, num_tokens, self.text.vocab_size)

    def first_token(
        self, engine: Engine, token_ids: Sequence[int], tenant: str, num_kv: int
    ) -> First:
        """A request as a pool runs it: look for files, read them, map them, compute the rest.

        num_kv  position at which a tail may lie; 0: nothing is looked for
        """
        begin = time.perf_counter()
        prefix = None
        if num_kv:
            prefix = self.tier.fetch(
                self.tier.chain(tenant, self.sizes.fingerprint),
                token_ids,
                self.sizes,
                ends=[num_kv],
                resident=engine.resident,
                prefill_tokens_per_s=0.0,  # never skipped
            )
        fetch_s = time.perf_counter() - begin
        engine.add(self.request(token_ids, tenant), prefix=prefix)
        seconds = 0.0
        while True:
            for output in engine.step():
                if isinstance(output.event, TokenEvent):
                    seconds = time.perf_counter() - begin
                elif isinstance(output.event, EndEvent):
                    usage = output.event.usage
                    assert usage is not None, output.event
                    return First(seconds, fetch_s, usage.cached_tokens)

    def made_up(self, token_ids: Sequence[int], tenant: str) -> Iterator[Source]:
        """Full blocks over these tokens, with KV of any values."""
        values = np.random.default_rng(0).random(self.sizes.block_bytes // 2, np.float32)
        payload = values.astype(np.float16).view(np.uint8).data
        chain = self.tier.chain(tenant, self.sizes.fingerprint)
        parent = bytes(32)
        for key in chain.block_keys(token_ids):
            fingerprint = self.sizes.fingerprint
            yield Source(key, "block", BLOCK_TOKENS, (payload,), fingerprint, tenant, parent)
            parent = key

    def computed(self, token_ids: Sequence[int], tenant: str) -> tuple[list[int], int]:
        """Compute a prompt's KV and write it: tokens with the one sampled, tokens with KV."""
        engine = self.engine()
        engine.add(self.request(token_ids, tenant), keep=True)
        while True:
            for output in engine.step():
                if output.kept is not None:
                    kept = output.kept
                    self.tier.put(tenant, list(engine.sources(kept, state=True)))
                    engine.release(kept)
                    return kept.token_ids, kept.num_kv

    def files(self) -> list[Path]:
        """Every object that is there."""
        return [self.tier.objects.path(kind, key) for kind, key, _, _ in self.tier.objects.walk()]

    def cool(self) -> None:
        """All files leave the page cache. Nobody may have them mapped."""
        gc.collect()
        for path in self.files():
            fd = os.open(path, os.O_RDONLY)
            try:
                os.fsync(fd)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)

    def warm(self) -> None:
        """All files are in the page cache."""
        for path in self.files():
            path.read_bytes()

    def clear(self) -> None:
        """Take every object away."""
        gc.collect()
        for kind, key, _, _ in list(self.tier.objects.walk()):
            self.tier.objects.drop(kind, key)
        self.tier.ledger.forget(self.tier.ledger.names())


def read_from_disk() -> int:
    """Bytes that this process had read from a disk so far; 0 where the kernel does not say."""
    try:
        lines = Path("/proc/self/io").read_text().splitlines()
    except OSError:
        return 0
    return int(dict(line.split(": ") for line in lines)["read_bytes"])
