"""An engine on virtual time: the real scheduler and block pool; a step takes what the model says.

Nothing is computed: a step lasts so long, then its sequences are so many tokens further. Steps of
decodes alone, in which nothing can change, are played as one run: their ends are added up one by
one, so that every moment is that of single steps, to the last bit. Whatever comes in between ends
the run with the step that is under way.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from kv_tier.block_pool import BlockPool
from kv_tier.state_pool import StatePool
from router.simulator.clock import Clock
from router.simulator.hardware import PoolHardware
from router.simulator.job import Job
from router.simulator.steady import repeated, steady_steps, steady_until
from workers.cost import CostModel
from workers.engine.chunks import Scheduled
from workers.engine.cost import StepCost
from workers.engine.memory import Memory
from workers.engine.scheduler import Scheduler
from workers.engine.sequence import Sequence
from workers.sla import SlaTable
from workers.wire import Request, SamplingParams

RUN_MOST: Final = 4096  # steps of one run
PRIORITY_STEP: Final = 1 << 44  # ms between two classes where order is by class alone


@dataclass(frozen=True, slots=True)
class EngineKind:
    """How an engine schedules.

    order      "class": as workers/engine/scheduler.py does; "priority": the more urgent class is
               next, but nobody gives way to it; "fifo": by arrival alone
    chunk      prefill tokens of a step; None: by what is promised
    suspends   memory that is short is taken from less urgent ones, whose KV goes into files
    budget_ms  the setting step_budget_ms
    """

    order: str = "class"
    chunk: int | None = None
    suspends: bool = True
    budget_ms: int = 200


@dataclass(slots=True)
class Run:
    """The steps under way: one, or some of decodes alone that follow each other.

    context  positions that the decodes of the first step read
    """

    begin_ms: float
    parts: list[Scheduled]
    steps: int
    context: int
    number: int


class SimEngine:
    """jobs, sequences: what is in the scheduler, by id.

    before_step()  called right before each step is scheduled, at that moment
    on_tokens(job) called when a job has more output, at that moment
    """

    def __init__(
        self,
        hardware: PoolHardware,
        clock: Clock,
        kind: EngineKind,
        told: CostModel,
        *,
        before_step: Callable[[], None],
        on_tokens: Callable[[Job], None],
        one_by_one: bool = False,
    ) -> None:
        """one_by_one: no runs; the outcome is the same, and takes longer."""
        self.hardware, self.clock, self.kind, self.one_by_one = hardware, clock, kind, one_by_one
        self.before_step, self.on_tokens = before_step, on_tokens
        states = StatePool(hardware.state_slots) if hardware.state_slots else None
        self.memory = Memory(BlockPool(hardware.num_blocks), states)
        self.scheduler = Scheduler(
            self.memory,
            StepCost(told),
            max_batch=hardware.max_batch,
            max_step_tokens=hardware.max_step_tokens,
            budget_ms=kind.budget_ms,
            chunk=kind.chunk,
        )
        self.jobs: dict[str, Job] = {}
        self.sequences: dict[str, Sequence] = {}
        self.num_steps = 0
        self.is_stopped = self.is_checked = False
        self._inbox: list[Callable[[], None]] = []
        self._run: Run | None = None
        self._number = 0
        self._is_between = False  # a step has ended, and the next is about to begin

    @property
    def classes_at_work(self) -> set[str]:
        """Of whom the steps under way compute something."""
        run = self._run
        return {self.jobs[part.sequence.id].sla for part in run.parts} if run else set()

    def post(self, do: Callable[[], None]) -> None:
        """Done between two steps, at the next such moment."""
        self._inbox.append(do)
        if self._is_between:
            return
        if self._run is None:
            self._begin()
        elif self._run.steps > 1:
            self._cut(self._run)

    def add(self, job: Job, table: SlaTable) -> None:
        """Between two steps: a job of which job.computed tokens are known."""
        sequence = sequence_of(job, table, self.hardware.tokens, self.kind.order)
        assert self.scheduler.can_ever_run(sequence), f"{job.id} can never run"
        self.jobs[job.id], self.sequences[job.id] = job, sequence
        self.scheduler.add(sequence)

    def remove(self, job: Job) -> None:
        """Between two steps: it has ended, or leaves."""
        del self.jobs[job.id]
        self.scheduler.remove(self.sequences.pop(job.id))

    def stop(self) -> None:
        """It is gone, in the middle of what it did."""
        self.is_stopped, self._run = True, None

    # --- steps ---

    def _begin(self) -> None:
        """The next step, or run of steps, if there is anything to do."""
        self._is_between = True
        while self._inbox:
            messages, self._inbox = self._inbox, []
            for do in messages:
                do()
        parts: list[Scheduled] = []
        if not self.is_stopped:
            self.before_step()
            parts = self.scheduler.schedule(int(self.clock.now_ms))
            if self.is_checked:
                self._check(parts)
        self._is_between = False
        if not parts:
            return
        self._number += 1
        context = sum([part.end for part in parts if is_decode(part)])
        self._run = Run(self.clock.now_ms, parts, 1, context, self._number)
        self._run.steps = self._steady_steps(parts)
        self.clock.at(self._end_of(self._run), partial(self._end, self._number))

    def _check(self, parts: list[Scheduled]) -> None:
        """What a step may hold, and who may run in it."""
        self.scheduler.check_order()
        num_tokens = sum([part.num_tokens for part in parts])
        assert num_tokens <= self.hardware.max_step_tokens, num_tokens
        assert len({part.sequence.id for part in parts}) == len(parts), "twice in one step"

    def _steady_steps(self, parts: list[Scheduled]) -> int:
        """How often the scheduler would say the same, if nobody came or went."""
        if self.one_by_one or not all(map(is_decode, parts)):
            return 1
        jobs = [self.jobs[part.sequence.id] for part in parts]
        if any([job.first_ms is None for job in jobs]):
            return 1  # whoever waits for a first token is told of it
        left = min([job.wish.output - job.made for job in jobs])
        return steady_steps(self.scheduler, parts, min(left, RUN_MOST))

    def _end_of(self, run: Run) -> float:
        """When its last step ends."""
        cost, num_decodes = self.hardware.cost, len(run.parts)
        if run.steps == 1:
            return run.begin_ms + step_ms(cost, run.parts, run.context)
        end_ms, context, until_ms = run.begin_ms, run.context, steady_until(self.scheduler)
        for step in range(run.steps):
            if int(end_ms) >= until_ms and step > 0:
                run.steps = step
                break
            end_ms += cost.step_ms(num_decodes, context)
            context += num_decodes
        return end_ms

    def _cut(self, run: Run) -> None:
        """The run ends with the step that is under way."""
        cost, num_decodes, now_ms = self.hardware.cost, len(run.parts), self.clock.now_ms
        end_ms, context, steps = run.begin_ms, run.context, 0
        while end_ms < now_ms or steps == 0:
            end_ms += cost.step_ms(num_decodes, context)
            context += num_decodes
            steps += 1
        if steps < run.steps:
            self._number += 1
            run.steps, run.number = steps, self._number
            self.clock.at(end_ms, partial(self._end, run.number))

    def _end(self, number: int) -> None:
        """The tokens of the run are there."""
        run = self._run
        if run is None or run.number != number:
            return
        self._run, self._is_between = None, True
        self.num_steps += run.steps
        if run.steps > 1:
            self._tell_scheduler(run)
        ahead = [self._advance(part, run.steps) for part in run.parts]
        for job in ahead:
            if job is not None:
                self.on_tokens(job)
        self._begin()

    def _tell_scheduler(self, run: Run) -> None:
        """As if it had been asked before each step of the run."""
        cost, num_decodes = self.hardware.cost, len(run.parts)
        begin_ms, context = run.begin_ms, run.context
        for _ in range(run.steps - 1):
            begin_ms += cost.step_ms(num_decodes, context)
            context += num_decodes
        repeated(self.scheduler, run.parts, run.steps - 1, int(begin_ms))

    def _advance(self, part: Scheduled, steps: int) -> Job | None:
        """Its tokens have KV; the job, if it has output."""
        sequence = part.sequence
        job = self.jobs[sequence.id]
        reaches_end = part.reaches_end
        job.computed_in_all += part.num_tokens + steps - 1
        job.computed = sequence.num_cached = part.end + steps - 1
        if not reaches_end:
            return None
        sequence.token_ids.extend([0] * steps)
        job.made += steps
        if job.first_ms is None:
            job.first_ms = self.clock.now_ms
        return job


def is_decode(part: Scheduled) -> bool:
    return part.num_tokens == 1 and part.reaches_end


def step_ms(cost: CostModel, parts: list[Scheduled], context: int) -> float:
    """One step: its decodes, which read `context` positions, and its chunks of prompts."""
    chunks = [part for part in parts if not is_decode(part)]
    ms = cost.step_ms(len(parts) - len(chunks), context)
    for part in chunks:
        behind = part.sequence.num_cached + part.num_tokens / 2
        ms += part.num_tokens * cost.token_ms(behind)
    return ms


def sequence_of(job: Job, table: SlaTable, context: int, order: str) -> Sequence:
    """The job as the engine has it: its tokens so far, of which job.computed are known."""
    wish = job.wish
    request = Request(
        id=wish.id,
        model="",
        token_ids=(0,) * wish.prompt,
        sla=job.sla,
        arrival_ms=int(wish.arrival_ms),
        params=SamplingParams(max_tokens=wish.max_tokens),
    )
    sequence = Sequence(request, None, 0, context, table)
    sequence.token_ids.extend([0] * job.made)
    sequence.num_cached = min(job.computed, len(sequence.token_ids) - 1)
    if order != "class":
        urgency = sequence.level * PRIORITY_STEP if order == "priority" else 0
        sequence.level, sequence.due_ms = 0, urgency + int(wish.arrival_ms)
        sequence.rank = (0, sequence.due_ms, 0)
    return sequence
