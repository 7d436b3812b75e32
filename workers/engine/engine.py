"""The engine of one pool: schedule, forward, sample, emit. One short loop, once per step.

    add ──► waiting ──► running ──step──► TokenEvent, TokenEvent, ..., EndEvent (ending.py: which)
                 resumed: journalled tokens are prefilled, never emitted again

An end token is journalled too, as a token event with text "", before the end event with
finish_reason "stop".

Ends that need no forward come out of a step of their own. So a step that is abandoned between
layers (StepAbandoned, raised by after_layer) has emitted nothing and drawn nothing: the next one
gives the same bits, though a model with recurrent layers may have to compute them from further back
(state_memory.py). All methods belong to one thread; only cancel may be called from any.
"""

from collections import deque
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from kernels.arithmetic import ARITHMETIC_VERSION
from kernels.ops import F32, U64, KvArena, Ops
from kv_tier.arena import Arena
from kv_tier.block_pool import BlockPool
from workers.engine.batch import Batch, build_batch
from workers.engine.cost import StepCost
from workers.engine.digest import first_link, link_text, next_link, parse_link
from workers.engine.ending import (
    CANCELLED,
    EXPIRED,
    NUMERIC_ERROR,
    Ending,
    bad_tokens,
    end_event,
    finished,
    too_large,
)
from workers.engine.kept import Kept
from workers.engine.limits import EngineLimits, kv_shape_of
from workers.engine.metrics import TokenRate
from workers.engine.sampler import Draw, Sampler
from workers.engine.scheduler import Scheduled, Scheduler
from workers.engine.sequence import Sequence
from workers.engine.state_memory import StateMemory
from workers.model.build import Model
from workers.text.stream import TextStream
from workers.text.text_model import TextModel
from workers.wire import EndEvent, Request, TokenEvent

if TYPE_CHECKING:
    from kv_tier.chain import Chain
    from kv_tier.objects import Source
    from kv_tier.prefix import Prefix
    from kv_tier.tier import Sizes

OnLogits = Callable[[str, int, F32], None]


class StepAbandoned(Exception):
    """Raised by after_layer to leave a step; step() lets it through with nothing emitted."""


@dataclass(frozen=True, slots=True)
class Output:
    """One event of one request; kept comes with the end of one that was added with keep."""

    request_id: str
    event: TokenEvent | EndEvent
    kept: Kept | None = None


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """What an engine says of itself; tokens_per_s counts output tokens of the last ten seconds."""

    running: int
    waiting: int
    free_blocks: int
    total_blocks: int
    tokens_per_s: float
    kv: dict[str, float] = field(default_factory=dict)


class Engine:
    """Runs requests on one processor. check() asserts its invariants, between steps."""

    def __init__(
        self,
        model: Model,
        text: TextModel,
        ops: Ops,
        limits: EngineLimits,
        *,
        after_layer: Callable[[], None],
        now_ms: Callable[[], int],
        on_logits: OnLogits | None = None,
        chain: "Callable[[str], Chain] | None" = None,
    ) -> None:
        """now_ms gives Unix milliseconds; chain(tenant) names the tenant's blocks, None: nothing is
        looked for and nothing kept.

        on_logits(request id, position of the first row, logits (n, V)) is called once per step for
        each request added with every_logit; the logits are valid during the call only.

        Raises ArenaRefused when the system gives no addresses for KV or state.
        """
        self._arena = Arena(kv_shape_of(model.config, limits.num_blocks), np.float16)
        self._kv = KvArena(self._arena.blocks)
        shape = model.config.state
        self._state = None if shape is None else StateMemory(shape, limits.state_slots)
        self._model, self._text, self._ops = model, text, ops
        self._after_layer, self._now_ms, self._on_logits = after_layer, now_ms, on_logits
        self._cost = StepCost()
        self._scheduler = Scheduler(
            BlockPool(limits.num_blocks),
            self._cost,
            max_batch=limits.max_batch,
            max_step_tokens=limits.max_step_tokens,
            budget_ms=limits.step_budget_ms,
            chunk=limits.chunk,
            states=self._state.pool if self._state else None,
        )
        self._sampler = Sampler(ops, text.hidden_ids)
        self._first_link = first_link(ARITHMETIC_VERSION, text.weights_digest)
        self._sequences: dict[str, Sequence] = {}
        self._known_ends: dict[str, Ending] = {}  # of sequences that never reach the scheduler
        self._cancelled: deque[str] = deque()
        self._rate = TokenRate()

    def add(
        self,
        request: Request,
        journal: Items[TokenEvent] = (),
        *,
        every_logit: bool = False,
        prefix: "Prefix | None" = None,
        keep: bool = False,
    ) -> None:
        """Take a request.

        journal      tokens that an earlier owner has emitted: from the first on, without a gap
        every_logit  hand the logits of all its tokens to on_logits
        prefix       what files know of its beginning; it is the engine's from now on
        keep         hand out what it leaves behind with its end event
        """
        assert request.id not in self._sequences, f"{request.id} is already here"
        assert not every_logit or self._on_logits is not None
        stream = TextStream(self._text, request.params.stop)
        sequence = Sequence(request, stream, self._first_link, self._text.context_length)
        sequence.every_logit = every_logit
        if journal:
            sequence.resume(journal, parse_link(journal[-1].digest), self._text.end_ids)
        self._sequences[request.id] = sequence
        ending = self._known_end(sequence)
        if ending is None:
            self._scheduler.add(sequence)
        else:
            self._known_ends[request.id] = ending

    def cancel(self, request_id: str) -> None:
        """The next step ends it as cancelled. Nothing happens to a request that is not here."""
        self._cancelled.append(request_id)

    def drop(self, request_id: str) -> None:
        """Forget it at once, without an event: it is somebody else's now."""
        if request_id in self._sequences:
            self._forget(self._sequences[request_id])

    def preempt(self, request_id: str) -> None:
        """Let others have its place in the batch; it keeps its memory and goes on in its turn.

        Nothing happens to a request that does not run.
        """
        sequence = self._sequences.get(request_id)
        if sequence is not None and sequence in self._scheduler.running:
            self._scheduler.preempt(sequence)

    def suspend(self, request_id: str) -> Kept | None:
        """Between steps: it leaves without an event, and its memory is the Kept's.

        None when it is not here.
        """
        raise NotImplementedError

    def sources(self, kept: Kept, *, state: bool) -> "Iterator[Source]":
        """What a Kept holds, to be written: views of its memory, good until release. Any thread.

        state: its recurrent state, too
        """
        raise NotImplementedError

    def hold_state(self, kept: Kept) -> Kept | None:
        """After release: hold the state that it left behind again, alone, for it to be written.

        None when somebody else has its slot now.
        """
        raise NotImplementedError

    def release(self, kept: Kept) -> None:
        """Nobody holds it any more; it stays findable until its memory is wanted."""
        raise NotImplementedError

    def resident(self, key: bytes) -> bool:
        """Whether the block or tail of this key is in memory. From any thread; a hint."""
        return False

    @property
    def sizes(self) -> "Sizes":
        """Of what it keeps: the shapes that its files are bound to."""
        raise NotImplementedError

    @property
    def prefill_tokens_per_s(self) -> float:
        """As measured; 0.0 while nothing is known. From any thread."""
        return self._cost.prefill_tokens_per_s

    def has_work(self) -> bool:
        return bool(self._sequences)

    def load(self) -> EngineLoad:
        scheduler = self._scheduler
        return EngineLoad(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            free_blocks=scheduler.pool.num_free,
            total_blocks=scheduler.pool.num_blocks,
            tokens_per_s=self._rate.tokens_per_s(self._now_ms()),
        )

    def rest(self) -> None:
        """Give KV and state back to the system, when nothing runs: for a pool that idles."""
        if not self._sequences:
            self._arena.release()
            if self._state is not None:
                self._state.release()

    def check(self) -> None:
        """Assert the invariants."""
        self._scheduler.check()
        scheduled = {s.id for s in self._scheduler.running + self._scheduler.waiting}
        assert scheduled | self._known_ends.keys() == self._sequences.keys()

    def step(self) -> list[Output]:
        """Compute one step; what came of it, in the order of the batch.

        Raises what after_layer raises, and then nothing was emitted and no token appended.
        """
        ended = self._end_early()
        if ended:
            return ended
        scheduled = self._scheduler.schedule()
        if not scheduled:
            return []
        batch = build_batch(scheduled)
        begin_ms = self._now_ms()
        logits = self._forward(scheduled, batch)
        self._advance(scheduled, begin_ms)
        return self._emit(batch, logits)

    def _forward(self, scheduled: Items[Scheduled], batch: Batch) -> F32:
        """The logits of the step; its sequences' state is kept, or put back where it was left."""
        state = self._state
        if state is None:
            return self._model.forward(batch.step, self._kv, None, self._after_layer)
        try:
            logits = self._model.forward(batch.step, self._kv, state.arena, self._after_layer)
        except BaseException:
            state.rewind(scheduled)
            raise
        state.keep(scheduled)
        return logits

    def _known_end(self, sequence: Sequence) -> Ending | None:
        """The end of a sequence that needs no step: refused, or its journal is complete."""
        if sequence.finish_reason is not None:
            return finished(sequence.finish_reason)
        bad = bad_tokens(sequence, self._text.vocab_size)
        if bad is None and not self._scheduler.can_ever_run(sequence):
            return too_large(sequence, self._scheduler.pool.num_blocks)
        return bad

    def _end_early(self) -> list[Output]:
        """The ends that need no forward."""
        endings = self._known_ends.copy()
        now_ms = self._now_ms()
        for sequence in self._sequences.values():
            deadline_ms = sequence.request.deadline_ms
            if deadline_ms is not None and now_ms >= deadline_ms:
                endings.setdefault(sequence.id, EXPIRED)
        while self._cancelled:
            request_id = self._cancelled.popleft()
            if request_id in self._sequences:
                endings.setdefault(request_id, CANCELLED)
        return [self._end(self._sequences[i], ending) for i, ending in endings.items()]

    def _advance(self, scheduled: Items[Scheduled], begin_ms: int) -> None:
        """The step is computed: its tokens have KV, and its cost is known."""
        num_prefill = 0
        for part in scheduled:
            if part.num_tokens > 1 or not part.reaches_end:
                num_prefill += part.num_tokens
            part.sequence.num_cached = part.end
            part.sequence.times.scheduled(begin_ms)
        num_decodes = len(scheduled)
        self._cost.observe(num_decodes, num_prefill, self._now_ms() - begin_ms)

    def _emit(self, batch: Batch, logits: F32) -> list[Output]:
        for sequence, position, begin, end in batch.watched:
            assert self._on_logits is not None
            self._on_logits(sequence.id, position, logits[begin:end])
        if not batch.sampled:
            return []
        draws = self._sampler.sample(batch.sampled, logits)
        sums: U64 = np.empty(logits.shape[0], np.uint64)
        self._ops.logits_sum(sums, logits)
        logits_sums: list[int] = sums.tolist()
        now_ms = self._now_ms()
        self._rate.add(now_ms, len(draws))
        outputs: list[Output] = []
        for (sequence, row), draw in zip(batch.sampled, draws, strict=True):
            if draw is None:
                outputs.append(self._end(sequence, NUMERIC_ERROR))
                continue
            outputs.append(self._token(sequence, draw, logits_sums[row], now_ms))
            if sequence.finish_reason is not None:
                outputs.append(self._end(sequence, finished(sequence.finish_reason)))
        return outputs

    def _token(self, sequence: Sequence, draw: Draw, logits_sum: int, now_ms: int) -> Output:
        index = sequence.num_output
        text = sequence.append(draw.token_id, self._text.end_ids)
        sequence.link = next_link(sequence.link, draw.token_id, logits_sum)
        sequence.times.token(now_ms)
        event = TokenEvent(
            index=index,
            token_id=draw.token_id,
            text=text,
            digest=link_text(sequence.link),
            logprobs=draw.logprobs,
        )
        return Output(sequence.id, event)

    def _end(self, sequence: Sequence, ending: Ending) -> Output:
        self._forget(sequence)
        return Output(sequence.id, end_event(sequence, ending))

    def _forget(self, sequence: Sequence) -> None:
        del self._sequences[sequence.id]
        if self._known_ends.pop(sequence.id, None) is None:
            self._scheduler.remove(sequence)
        if self._state is not None:
            self._state.forget(sequence)
