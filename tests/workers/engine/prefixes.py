"""Engines that share what they compute, in memory and through files of a real store."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from kernels.ops import BLOCK_TOKENS
from kernels.reference import ReferenceOps
from kv_tier.chain import Chain
from kv_tier.objects import ObjectStore
from kv_tier.prefix import Prefix, state_name
from tests.workers.engine.fake import (
    FakeClock,
    FakeModel,
    FakeText,
    RecurrentModel,
    no_layer,
)
from workers.engine.engine import Engine
from workers.engine.kept import Kept
from workers.engine.limits import EngineLimits
from workers.engine.payload import sizes_of
from workers.wire import Request

SALT = bytes(range(32))


class PagedModel(FakeModel):
    """Its blocks are whole pages, so that files can be mapped."""

    config = type(FakeModel.config)(**vars(FakeModel.config) | {"head_dim": 8})


class PagedRecurrentModel(RecurrentModel):
    """The same with a state."""

    config = type(RecurrentModel.config)(**vars(RecurrentModel.config) | {"head_dim": 8})


def chains(engine_or_sizes):
    """What an engine's `chain` is, given its sizes."""
    return lambda tenant: Chain(SALT, tenant, engine_or_sizes.fingerprint)


def sharing_engine(model: FakeModel | None = None, **wanted) -> Engine:
    """An engine over a fake model, with a chain; wanted: fields of EngineLimits, after_layer."""
    clock = FakeClock()
    model = model or FakeModel(clock)
    seams = {"after_layer": wanted.pop("after_layer", no_layer)}
    seams["on_logits"] = wanted.pop("on_logits", None)
    usual = {"max_batch": 8, "max_step_tokens": 64, "step_budget_ms": 50, "num_blocks": 16}
    limits = EngineLimits(**(usual | wanted))
    sizes = sizes_of(model.config, FakeText.weights_digest)
    engine = Engine(
        model, FakeText(), ReferenceOps(), limits, now_ms=clock, chain=chains(sizes), **seams
    )
    if engine._state is not None:
        engine._home.state.delta[...] = -1  # what a slot held before is never read
    return engine


def prompt_of(length: int, first: int = 10) -> list[int]:
    """Tokens that no shift of them repeats early."""
    return [6 + (first + i * i + i // 7) % 90 for i in range(length)]


class Computed:
    """How many tokens an engine's model computed since the last look."""

    def __init__(self, engine: Engine) -> None:
        self._model = engine._model
        self.seen = len(self._model.steps)

    def tokens(self) -> int:
        steps = self._model.steps[self.seen :]
        self.seen = len(self._model.steps)
        return sum(len(step.token_ids) for step in steps)


class Files:
    """What engines leave behind, in a store on the disk."""

    def __init__(self, root: Path) -> None:
        self.store = ObjectStore(root)

    def write(self, engine: Engine, kept: Kept, *, state: bool = True) -> None:
        for source in engine.sources(kept, state=state):
            self.store.write(source)

    def prefix(
        self, engine: Engine, request: Request, token_ids: Sequence[int], ends: Sequence[int] = ()
    ) -> Prefix:
        """The longest beginning of token_ids that files hold."""
        chain = engine._chain(request.tenant)
        prefix = Prefix(keys=chain.block_keys(token_ids), ends=tuple(sorted(ends)))
        for key in prefix.keys:
            if self.store.has("block", key):
                prefix.blocks[key] = self._open(engine, "block", key, BLOCK_TOKENS)
            elif not engine.resident(key):
                break
        for end in sorted({*ends, *range(256, len(token_ids), 256)}, reverse=True):
            if end < len(token_ids):
                self._take_end(prefix, engine, chain.key_at(token_ids, end), end)
        return prefix

    def _take_end(self, prefix: Prefix, engine: Engine, key: bytes, end: int) -> None:
        if prefix.tail is None and end % BLOCK_TOKENS and self.store.has("tail", key):
            prefix.tail = self._open(engine, "tail", key, end % BLOCK_TOKENS)
            prefix.tail_end = end
        is_here = engine.resident(state_name(key))
        if prefix.state is None and not is_here and self.store.has("state", key):
            prefix.state, prefix.state_end = self._open(engine, "state", key, end), end

    def _open(self, engine: Engine, kind, key: bytes, num_tokens: int):
        sizes = engine.sizes
        num_bytes = sizes.payload_bytes(kind, num_tokens)
        opened = self.store.open(kind, key, sizes.fingerprint, num_bytes)
        opened.verify()
        return opened


def events_of(engine: Engine, request_id: str = "r") -> Iterator:
    """Step by step the events of one request, until it has ended."""
    while engine.has_work():
        for output in engine.step():
            if output.request_id == request_id:
                yield output
        engine.check()
