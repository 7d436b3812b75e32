"""A model whose logits are integer hashes of the tokens before, read through slots and block
tables.

It keeps token ids where a real model keeps K, so a wrong slot, a shared block or a chunk computed
twice changes its answers. No float is added anywhere: its bits are the same on every machine.
"""

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np

from kernels.ops import BLOCK_TOKENS, F32, KvArena, Step
from kernels.reference import ReferenceOps
from workers.engine.engine import Engine
from workers.engine.limits import EngineLimits
from workers.model.config import StateShape
from workers.wire import EndEvent, Request, SamplingParams, TokenEvent

VOCAB = 96
END_ID, HIDDEN_ID = 1, 2  # ends a text; is never sampled
NAN_ID = 3  # a prompt token that makes all logits after it NaN; is never sampled
NUM_LAYERS = 3
CONTEXT = 4 * BLOCK_TOKENS


class FakeText:
    """Letters, and the two bytes of é as tokens of their own."""

    name = "fake"
    context_length = CONTEXT
    vocab_size = VOCAB
    weights_digest = "fa" * 16
    end_ids = frozenset({END_ID})
    hidden_ids = frozenset({HIDDEN_ID, NAN_ID})

    def token_bytes(self, token_id: int) -> bytes:
        if token_id in (END_ID, HIDDEN_ID):
            return b""
        return {4: b"\xc3", 5: b"\xa9"}.get(token_id, bytes([97 + token_id % 5]))


class FakeClock:
    """Unix milliseconds that only the test moves."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000

    def __call__(self) -> int:
        return self.now_ms


class FakeModel:
    """A Model of workers.model.build; each step takes fixed_ms + per_token_ms * T of the clock."""

    config = SimpleNamespace(
        num_kv_layers=NUM_LAYERS, num_kv_heads=1, head_dim=2, context_length=CONTEXT, state=None
    )

    def __init__(self, clock: FakeClock, fixed_ms: int = 0, per_token_ms: int = 0) -> None:
        self.clock, self.fixed_ms, self.per_token_ms = clock, fixed_ms, per_token_ms
        self.steps: list[Step] = []

    def forward(self, step: Step, kv: KvArena, _state, after_layer: Callable[[], None]) -> F32:
        self.steps.append(step)
        blocks, offsets = step.slot_mapping // BLOCK_TOKENS, step.slot_mapping % BLOCK_TOKENS
        for layer in range(NUM_LAYERS):
            kv.blocks[blocks, layer, 0, 0, offsets, 0] = step.token_ids
            kv.blocks[blocks, layer, 1, 0, offsets, 0] = step.positions
            after_layer()
        self.clock.now_ms += self.fixed_ms + self.per_token_ms * len(step.token_ids)
        logits = [self._logits(step, kv, int(row)) for row in step.logit_rows]
        return np.array(logits, np.float32).reshape(-1, VOCAB)

    def _logits(self, step: Step, kv: KvArena, row: int) -> F32:
        places = np.arange(step.positions[row] + 1)
        blocks = step.block_tables[step.seq_index[row], places // BLOCK_TOKENS]
        ids = kv.blocks[blocks, NUM_LAYERS - 1, 0, 0, places % BLOCK_TOKENS, 0].astype(np.uint64)
        kept = kv.blocks[blocks, 0, 1, 0, places % BLOCK_TOKENS, 0]
        assert (kept == places).all(), "a position was written to the wrong place"
        if (ids == NAN_ID).any():
            return np.full(VOCAB, np.nan, np.float32)
        powers = np.multiply.accumulate(np.full(len(ids), 0x9E3779B97F4A7C15, np.uint64))
        mixed = ((ids + np.uint64(1)) * powers).sum(
            dtype=np.uint64
        )  # wraps, so any order is the same
        words = (mixed ^ np.arange(VOCAB, dtype=np.uint64)) * np.uint64(0xBF58476D1CE4E5B9)
        words = (words ^ (words >> np.uint64(29))) * np.uint64(0x94D049BB133111EB)
        return (words >> np.uint64(40)).astype(np.float32) / np.float32(2**21) - np.float32(4)


class RecurrentModel(FakeModel):
    """The same answers, with a state beside the KV: in every layer a hash of all tokens so far.

    It must agree with the KV at every token; so a slot of another sequence, a token seen twice or
    not at all, or a state not put back after an abandoned step, fails.
    """

    config = SimpleNamespace(
        num_kv_layers=NUM_LAYERS,
        num_kv_heads=1,
        head_dim=2,
        context_length=CONTEXT,
        state=StateShape(NUM_LAYERS, 2, 1, 1, 1, 1, 1),
    )

    def forward(self, step: Step, kv: KvArena, state, after_layer: Callable[[], None]) -> F32:
        assert len(set(step.state_slots)) == len(step.block_tables) == len(step.state_slots)
        layers = iter(range(NUM_LAYERS))

        def after() -> None:
            layer = next(layers)
            for index, slot in enumerate(step.state_slots):
                self._advance(step, kv, state, layer, np.flatnonzero(step.seq_index == index), slot)
            after_layer()

        return super().forward(step, kv, None, after)

    def _advance(self, step: Step, kv: KvArena, state, layer: int, rows, slot: int) -> None:
        begin, end = int(step.positions[rows[0]]), int(step.positions[rows[-1]]) + 1
        hashed = hash_of(
            step.token_ids[rows], int(state.delta[slot, layer, 0, 0, 0]) if begin else 0
        )
        places = np.arange(end)
        blocks = step.block_tables[step.seq_index[rows[0]], places // BLOCK_TOKENS]
        known = kv.blocks[blocks, layer, 0, 0, places % BLOCK_TOKENS, 0]
        assert hashed == hash_of(known, 0), f"state and KV of slot {slot} differ at {end}"
        state.delta[slot, layer] = hashed
        state.conv[slot, layer] = step.token_ids[rows[-1]]


def hash_of(token_ids, hashed: int) -> int:
    """Exact in float32."""
    for token_id in token_ids:
        hashed = (hashed * 31 + int(token_id) + 1) % 65521
    return hashed


def no_layer() -> None:
    """after_layer that lets every step run."""


def make_engine(clock: FakeClock | None = None, model: FakeModel | None = None, **wanted) -> Engine:
    """An engine over the fake model; wanted: fields of EngineLimits, after_layer, on_logits."""
    clock = clock or FakeClock()
    seams = {"after_layer": wanted.pop("after_layer", no_layer)}
    seams["on_logits"] = wanted.pop("on_logits", None)
    usual = {"max_batch": 8, "max_step_tokens": 64, "step_budget_ms": 50, "num_blocks": 16}
    limits = EngineLimits(**(usual | wanted))
    model = model or FakeModel(clock)
    return Engine(model, FakeText(), ReferenceOps(), limits, now_ms=clock, **seams)


def make_request(request_id: str = "r", token_ids=(10, 11, 12), **wanted) -> Request:
    """A request; wanted: fields of Request or of SamplingParams."""
    mine = {k: wanted.pop(k) for k in ("sla", "deadline_ms", "arrival_ms") if k in wanted}
    mine.setdefault("arrival_ms", 1_000_000)
    params = SamplingParams(**({"max_tokens": 8} | wanted))
    return Request(id=request_id, model="fake", token_ids=tuple(token_ids), params=params, **mine)


def run(engine: Engine, max_steps: int = 10_000) -> dict[str, list[TokenEvent | EndEvent]]:
    """Step until nothing is left; the events of each request, in order."""
    events: dict[str, list[TokenEvent | EndEvent]] = {}
    for _ in range(max_steps):
        if not engine.has_work():
            return events
        for output in engine.step():
            events.setdefault(output.request_id, []).append(output.event)
        engine.check()
    raise AssertionError(f"still at work after {max_steps} steps: {engine.load()}")


def alone(request: Request, journal=()) -> list[TokenEvent | EndEvent]:
    """The events of a request that has an engine for itself."""
    engine = make_engine()
    engine.add(request, journal)
    return run(engine)[request.id]


def text_of(events) -> str:
    return "".join(event.text for event in events)


def ids_of(events) -> list[int]:
    return [event.token_id for event in events if isinstance(event, TokenEvent)]
