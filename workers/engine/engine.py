"""The engine of one pool: schedule, forward, sample, emit. One short loop, once per step.

    add ──► waiting ──► running ──step──► TokenEvent, TokenEvent, ..., EndEvent (ending.py: which)
                 resumed: journalled tokens are prefilled, never emitted again

An end token is journalled too, as a token event with text "", before the end event with
finish_reason "stop".

Ends that need no forward come out of a step of their own. So a step that is abandoned between
layers (StepAbandoned, raised by after_layer) has emitted nothing and drawn nothing: the next one
gives the same bits, though a model with recurrent layers may have to compute them from further back
(state_memory.py). All methods belong to one thread; only cancel and prepare may be called from any.
"""

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Items
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from kernels.arrays import HOST, Arrays
from kernels.ops import BLOCK_TOKENS, F32, Ops
from kv_tier.block_pool import BlockPool
from kv_tier.format import KEY_BYTES
from kv_tier.objects import Source
from kv_tier.prefix import STATE_SUFFIX, Sizes
from kv_tier.state_pool import StatePool
from workers.cost import CostModel
from workers.engine.batch import Batch, build_batch
from workers.engine.behind import Behind
from workers.engine.chunks import Scheduled, work_of
from workers.engine.cost import StepCost
from workers.engine.device_home import DeviceHome
from workers.engine.digest import parse_link
from workers.engine.early_ends import EarlyEnds
from workers.engine.ending import (
    NUMERIC_ERROR,
    Ending,
    end_event,
    finished,
    no_token,
)
from workers.engine.home import Home, HostHome
from workers.engine.kept import Kept
from workers.engine.limits import EngineLimits, kv_shape_of
from workers.engine.load import EngineLoad, load_of
from workers.engine.memory import Memory
from workers.engine.metrics import Meter
from workers.engine.parking import Parking
from workers.engine.payload import sizes_of
from workers.engine.reuse import Reuse
from workers.engine.scheduler import Scheduler
from workers.engine.sequence import TABLE, Sequence
from workers.engine.sources import sources_of
from workers.engine.state_memory import StateMemory
from workers.engine.tokens import OnLogits, Tokens
from workers.model.build import Model
from workers.sla import SlaTable
from workers.text.mask import Masker
from workers.text.stream import TextStream
from workers.text.text_model import TextModel
from workers.wire import EndEvent, Request, TokenEvent

if TYPE_CHECKING:
    from kv_tier.chain import Chain
    from kv_tier.prefix import Prefix

FORGET_MS: Final = 600_000  # an engine that idles for so long forgets what lies in memory alone


class StepAbandoned(Exception):
    """Raised by after_layer to leave a step; step() lets it through with nothing emitted."""


@dataclass(frozen=True, slots=True)
class Output:
    """One event of one request; kept comes with the end of one that was added with keep."""

    request_id: str
    event: TokenEvent | EndEvent
    kept: Kept | None = None


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
        arrays: Arrays = HOST,
        table: SlaTable = TABLE,
        timer: Callable[[], float] | None = None,
    ) -> None:
        """now_ms gives Unix milliseconds.

        timer gives seconds, to measure steps by; None: now_ms does

        chain(tenant) names what the tenant's sequences compute, so that others of it that begin
        alike need not; it is first called by add. None: every sequence computes everything.

        on_logits(request id, position of the first row, logits (n, V)) is called once per step for
        each request added with every_logit; the logits are valid during the call only.

        arrays: where the ops want KV and state, and leave logits.

        Raises ArenaRefused when the system gives no addresses for KV or state, and DeviceFull.
        """
        kv_shape, shape = kv_shape_of(model.config, limits.num_blocks), model.config.state
        self._home: Home
        if arrays is HOST:
            self._home = HostHome(kv_shape, shape, limits.state_slots)
        else:
            self._home = DeviceHome(arrays, kv_shape, shape, limits.state_slots)
        states = None if shape is None else StatePool(limits.state_slots, self._home.copy_state)
        self._state = None if states is None else StateMemory(states)
        self._model, self._text, self._ops = model, text, ops
        self._after_layer, self._now_ms, self._on_logits = after_layer, now_ms, on_logits
        self._table = table
        self._timer = timer or (lambda: now_ms() / 1000)
        self._cost = StepCost()
        self._meter = Meter()
        self._memory = Memory(BlockPool(limits.num_blocks), states, home=self._home)
        self._scheduler = Scheduler(
            self._memory,
            self._cost,
            max_batch=limits.max_batch,
            max_step_tokens=limits.max_step_tokens,
            budget_ms=limits.step_budget_ms,
            chunk=limits.chunk,
        )
        self._chain = chain
        self._sizes = sizes_of(model.config, text.weights_digest)
        self._tokens = Tokens(ops, text, arrays, now_ms, on_logits)
        self._sequences: dict[str, Sequence] = {}
        self._ends = EarlyEnds(self._scheduler, text.vocab_size, limits.num_blocks)
        self._kepts: set[Kept] = set()
        self._behind = Behind(self._memory)
        self.parking = Parking(
            self._scheduler, self._sequences, self._kepts, self._hand_out, self._now_ms
        )
        self._masker = Masker(text)
        self._num_prompt_computed = 0
        self._worked_ms = now_ms()
        self._ended: float | None = None  # the last step, by the timer, if the next follows at once
        self.is_stalled = False  # the last step found that all who are here wait for memory

    def add(
        self,
        request: Request,
        journal: Items[TokenEvent] = (),
        *,
        every_logit: bool = False,
        prefix: "Prefix | None" = None,
        keep: bool = False,
        behind: bool = False,
    ) -> None:
        """Take a request.

        journal      tokens that an earlier owner has emitted: from the first on, without a gap
        every_logit  hand the logits of all its tokens to on_logits
        prefix       what files know of its beginning; it is the engine's from now on
        keep         hand out what it leaves behind with its end event
        behind       and what it has completed, while it runs (behind)
        """
        assert request.id not in self._sequences, f"{request.id} is already here"
        assert not every_logit or self._on_logits is not None
        stream = TextStream(self._text, request.params.stop)
        context_length = self._text.context_length
        sequence = Sequence(request, stream, self._tokens.first_link, context_length, self._table)
        sequence.every_logit = every_logit
        if request.grammar:
            sequence.mask = self._masker.start(request.grammar)
        if journal:
            sequence.resume(journal, parse_link(journal[-1].digest), self._text.end_ids)
        self._sequences[request.id] = sequence
        ending = self._ends.of_new(sequence)
        self._add_reuse(sequence, prefix, keep, ending)
        if behind and sequence.reuse is not None:
            self._behind.follow(sequence)
        if ending is None:
            self._scheduler.add(sequence)

    def prepare(self, request: Request) -> None:
        """What takes long about it and needs no engine, before add. From any thread."""
        if request.grammar:
            self._masker.prepare(request.grammar)

    def probe(self, made_up: Items[Sequence], num_cached: int) -> float | None:
        """Milliseconds of one step of these sequences, num_cached tokens of each counting as known.

        They leave no trace. For calibration, while nothing is here; None: it cannot hold them.
        """
        assert not self._sequences
        longest = max(len(sequence.token_ids) for sequence in made_up)
        num_tokens = sum(len(sequence.token_ids) - num_cached for sequence in made_up)
        if longest > self._text.context_length or not self._scheduler.can_take(made_up, num_tokens):
            return None
        try:
            for sequence in made_up:
                if not self._memory.reserve(sequence):
                    return None
                sequence.num_cached = num_cached
                for block_id in sequence.blocks:  # real memory, as KV that was computed has it
                    self._home.load_tokens(block_id, block_id, BLOCK_TOKENS)
            begin = self._timer()
            batch = build_batch([Scheduled(s, len(s.token_ids)) for s in made_up])
            home = self._home
            logits = self._model.forward(batch.step, home.kv, home.state, self._after_layer)
            self._tokens.draw(batch, logits)
            return 1000 * (self._timer() - begin)
        finally:
            for sequence in made_up:
                self._memory.free(sequence)

    def start_from(self, cost: CostModel) -> None:
        """What its steps cost, as measured; it is corrected from now on."""
        self._scheduler.cost = self._cost = StepCost(cost)

    def cancel(self, request_id: str) -> None:
        """The next step ends it as cancelled. Nothing happens to a request that is not here."""
        self._ends.cancel(request_id)

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

    def promote(self, request_id: str, sla: str) -> None:
        """It belongs to another class from the next step on."""
        sequence = self._sequences.get(request_id)
        if sequence is not None and request_id not in self._ends.known:
            self._scheduler.reclass(sequence, sla, self._table)

    def suspend(self, request_id: str) -> Kept | None:
        """Between steps: it leaves without an event, and its memory is the Kept's.

        None when it is not here, was refused, or the engine has no chain: then nothing changes, and
        a refused one ends by the next step.
        """
        sequence = self._sequences.get(request_id)
        if sequence is None or sequence.reuse is None:
            return None
        kept = self._hand_out(sequence)
        self._forget(sequence)
        return kept

    def behind(self, state_every_ms: int | None) -> list[Kept]:
        """Between steps: what sequences added with `behind` have completed, to be written while
        they go on; each is to be released.

        state_every_ms: a sequence's state comes along after so long; None: none does now
        """
        kepts = self._behind.take(self._now_ms(), state_every_ms)
        self._kepts.update(kepts)
        return kepts

    def sources(self, kept: Kept, *, state: bool) -> Iterator[Source]:
        """What a Kept holds, to be written: its memory, good until release. From any thread.

        state: its recurrent state, too
        """
        return sources_of(kept, self._sizes.fingerprint, self._home, state=state)

    def hold_state(self, kept: Kept) -> Kept | None:
        """After release: hold the state that it left behind again, alone, for it to be written.

        None when it has made room for others.
        """
        if self._state is None or kept.state is None or kept in self._kepts:
            return None
        key, _ = kept.state
        if self._state.pool.find(key.hex()) is None:
            return None
        again = replace(kept, blocks=[], tail=None, state=(key, self._state.pool.pin(key.hex())))
        self._kepts.add(again)
        return again

    def release(self, kept: Kept) -> None:
        """Nobody holds it any more; it stays findable until its memory is wanted."""
        self._kepts.remove(kept)
        self._behind.released(kept)
        self._memory.release(kept)

    def resident(self, key: bytes) -> bool:
        """Whether the block or tail of this key is in memory, or the state of a name that
        prefix.state_name made. From any thread; a hint."""
        if len(key) == KEY_BYTES:
            return self._memory.pool.find(key) is not None
        name = key.removesuffix(STATE_SUFFIX).hex()
        return self._state is not None and self._state.pool.find(name) is not None

    @property
    def sizes(self) -> Sizes:
        """Of what it keeps, and the fingerprint that its files are bound to."""
        return self._sizes

    @property
    def prefill_tokens_per_s(self) -> float:
        """As measured; 0.0 while nothing is known. From any thread."""
        return self._cost.prefill_tokens_per_s

    def has_work(self) -> bool:
        """Whether a step would do anything. A parked one is brought back first."""
        return len(self._sequences) > len(self._scheduler.suspended) or self._ends.has_cancelled

    def load(self) -> EngineLoad:
        kv = self._memory.load() | {"computed_prompt_tokens": self._num_prompt_computed}
        return load_of(self._scheduler, self._tokens.tokens_per_s, kv, self._meter)

    def rest(self) -> None:
        """Give memory that nobody wants back to the system: for a pool that idles.

        What is cached stays, until the engine has idled for FORGET_MS.
        """
        if self._sequences:
            return
        self._memory.rest(forget=self._now_ms() - self._worked_ms >= FORGET_MS)

    def check(self) -> None:
        """Assert the invariants."""
        self._scheduler.check()
        everybody = self._scheduler.running + self._scheduler.waiting
        self._memory.check(everybody, self._kepts)
        scheduled = {sequence.id for sequence in everybody}
        assert scheduled | self._ends.known.keys() == self._sequences.keys()

    def step(self) -> list[Output]:
        """Compute one step; what came of it, in the order of the batch.

        Raises what after_layer raises, and then nothing was emitted and no token appended.
        """
        self.is_stalled = False
        ended = self._end_early()
        if ended:
            return ended
        begin_ms, begin = self._now_ms(), self._timer()
        since, self._ended = self._ended or begin, None
        scheduled = self._scheduler.schedule(begin_ms)
        if not scheduled:
            self.is_stalled = True
            return []
        batch = build_batch(scheduled)
        work = work_of(scheduled)
        logits = self._forward(scheduled, batch)
        self._advance(scheduled, begin_ms)
        outputs = self._emit(batch, logits)
        self._worked_ms = self._now_ms()
        end = self._timer()
        self._cost.observe(1000 * (end - since), work)  # a token waits for what is between steps
        self._meter.step(1000 * (end - begin), len(scheduled))
        if self._scheduler.running:
            self._ended = end
        return outputs

    def _forward(self, scheduled: Items[Scheduled], batch: Batch) -> F32:
        """The logits of the step; its sequences' state is kept, or put back where it was left."""
        state = self._state
        if state is None:
            return self._model.forward(batch.step, self._home.kv, None, self._after_layer)
        try:
            home = self._home
            logits = self._model.forward(batch.step, home.kv, home.state, self._after_layer)
        except BaseException:
            for sequence in state.rewind(scheduled, self._memory):
                self._scheduler.start_over(sequence)
            raise
        state.keep(scheduled)
        return logits

    def _end_early(self) -> list[Output]:
        """The ends that need no forward."""
        endings = self._ends.due(self._sequences, self._now_ms())
        return [self._end(self._sequences[i], ending) for i, ending in endings.items()]

    def _advance(self, scheduled: Items[Scheduled], begin_ms: int) -> None:
        """The step is computed: its tokens have KV."""
        for part in scheduled:
            sequence = part.sequence
            in_prompt = min(part.end, sequence.num_prompt) - sequence.num_cached
            self._num_prompt_computed += max(0, in_prompt)
            sequence.num_cached = part.end
            self._memory.seal(sequence)
            sequence.times.scheduled(begin_ms)

    def _emit(self, batch: Batch, logits: F32) -> list[Output]:
        outputs: list[Output] = []
        for sequence, event in self._tokens.choose(batch, logits):
            if event is None:
                outputs.append(self._end(sequence, no_token(sequence)))
                continue
            outputs.append(Output(sequence.id, event))
            self._meter.token(sequence.sla.name, sequence.times)
            if sequence.finish_reason is not None:
                outputs.append(self._end(sequence, finished(sequence.finish_reason)))
        return outputs

    def _end(self, sequence: Sequence, ending: Ending) -> Output:
        kept = None
        if ending is NUMERIC_ERROR:
            self._memory.spoil(sequence)
        elif sequence.keep:
            kept = self._hand_out(sequence)
        self._forget(sequence)
        if ending.status == "finished":
            lengths = (sequence.num_prompt, sequence.num_output)
            self._meter.finished(sequence.sla.name, sequence.times, self._now_ms(), lengths)
        return Output(sequence.id, end_event(sequence, ending), kept)

    def _hand_out(self, sequence: Sequence) -> Kept:
        kept = self._memory.hand_out(sequence)
        self._kepts.add(kept)
        if self._state is not None:
            self._state.forget(sequence)
        return kept

    def _forget(self, sequence: Sequence) -> None:
        del self._sequences[sequence.id]
        if not self._sequences:
            self._ended = None
        self._behind.forget(sequence)
        if self._ends.known.pop(sequence.id, None) is None:
            self._scheduler.remove(sequence)
        else:
            self._memory.free(sequence)
        if self._state is not None:
            self._state.forget(sequence)

    def _add_reuse(
        self, sequence: Sequence, prefix: "Prefix | None", keep: bool, ending: Ending | None
    ) -> None:
        """What it may begin with, and whether it leaves something behind. Not if it is refused."""
        if self._chain is None:
            assert prefix is None and not keep, f"{sequence.id}: without a chain nothing is kept"
            return
        if ending is not None and ending.status != "finished":
            if prefix is not None:
                prefix.close()
            return
        chain, is_looking = self._chain(sequence.request.tenant), not sequence.every_logit
        sequence.reuse = Reuse(chain, sequence.token_ids, prefix, is_looking=is_looking)
        sequence.keep = keep
