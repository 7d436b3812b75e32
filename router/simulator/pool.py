"""A pool on virtual time: what it has claimed, what comes from files and goes into them.

    take ──► restored (files, beside the steps) ──► engine ──► end
                        ▲                             │ └─► leave: written, then another pool's
                        └────── suspended: written ◄──┘

Reading and writing files each take turns, at the speed of the hardware. What a conversation leaves
in memory is found by its next turn as long as the block pool has not given it to others.
"""

from collections import Counter
from collections.abc import Callable
from functools import partial

from router.simulator.clock import Clock
from router.simulator.hardware import BLOCK_TOKENS, PoolHardware
from router.simulator.job import CLAIMED, FINISHED, MOVING, Job
from router.simulator.steps import EngineKind, SimEngine
from workers.cost import CostModel
from workers.engine.lately import Lately
from workers.engine.sequence import Sequence
from workers.sla import SlaTable
from workers.wire import PoolLoad


class SimPool:
    """on_first, on_end: told of a job's first token and of its end, at that moment."""

    def __init__(
        self,
        name: str,
        hardware: PoolHardware,
        clock: Clock,
        table: SlaTable,
        kind: EngineKind,
        *,
        told: CostModel | None = None,
        has_files: bool = True,
        one_by_one: bool = False,
    ) -> None:
        """told: what it believes and says of its costs; None: the truth."""
        self.name, self.hardware, self.clock, self.table = name, hardware, clock, table
        self.told, self.has_files = told or hardware.cost, has_files
        self.engine = SimEngine(
            hardware,
            clock,
            kind,
            self.told,
            before_step=self._make_room,
            on_tokens=self._tokens,
            one_by_one=one_by_one,
        )
        self.on_first: Callable[[Job], None] = lambda job: None
        self.on_end: Callable[[Job], None] = lambda job: None
        self.claimed: dict[str, Job] = {}
        self.taken: Counter[str] = Counter()  # claims so far, by class
        self.lately = Lately()
        self._first: set[str] = set()  # of whom the first token of this stay was told
        self._reads_until = self._writes_until = 0.0
        self._written: dict[str, list[int]] = {}  # blocks of who left, until they are in files
        self._promised = 0  # blocks that are free when that is done

    @property
    def is_lost(self) -> bool:
        return self.engine.is_stopped

    def would_take(self, job: Job) -> bool:
        """Whether it claims the job now: it has a place, or somebody less urgent makes way."""
        over = len(self.claimed) - self.hardware.max_batch
        if self.is_lost or over < 0 or self.engine.kind.order != "class":
            return not self.is_lost and over < 0
        urgency = self.table.urgency
        lower = sum(urgency[other.sla] > urgency[job.sla] for other in self.claimed.values())
        return lower > over

    def take(self, job: Job) -> None:
        """It claims the job; what is known of it comes into memory before it can run."""
        job.state, job.pool = CLAIMED, self.name
        if job.claimed_ms is None:
            job.claimed_ms = self.clock.now_ms
        self.claimed[job.id] = job
        self.taken[job.sla] += 1
        self.clock.at(self._restored_at(job), partial(self.engine.post, partial(self._add, job)))

    def leave(self, job: Job, then: Callable[[], None]) -> None:
        """Between two steps it leaves the engine; `then` is called when files have its KV."""
        self.engine.post(partial(self._leave, job, then))

    def lose(self) -> list[Job]:
        """The pool is gone. Its jobs, without what files do not have."""
        self.engine.stop()
        jobs = list(self.claimed.values())
        for job in jobs:
            job.computed = min(job.computed, job.in_files)
        self.claimed.clear()
        return jobs

    def load(self) -> PoolLoad:
        """What it says of itself."""
        engine, jobs = self.engine, self.claimed.values()
        scheduler, pool = engine.scheduler, engine.memory.pool
        decoding = [s for s in scheduler.running if s.num_uncached == 1]
        waiting = [s for s in scheduler.waiting if not s.blocks]
        prompts_per_s, outputs_per_s = self.lately.rates(scheduler.prefilled, self.clock.now_ms)
        return PoolLoad(
            pool=self.name,
            worker=self.name,
            state="absent" if self.is_lost else "ready",
            running=len(self.claimed),
            waiting=len(scheduler.waiting),
            capacity=self.hardware.max_batch,
            free_blocks=pool.num_free,
            total_blocks=pool.num_blocks,
            cost=self.told,
            step_tokens=self.hardware.max_step_tokens,
            budget_ms=engine.kind.budget_ms,
            decoding=len(decoding),
            context_tokens=sum([s.num_cached for s in decoding]),
            prefill_tokens=sum([max(0, job.num_tokens - job.computed - 1) for job in jobs]),
            prefill_by_class=self._prefill_by_class(),
            output_tokens=dict(self.lately.output_tokens),
            waiting_blocks=sum([s.num_blocks_wanted for s in waiting]),
            by_class=dict(Counter(job.sla for job in jobs)),
            prompts_per_s=prompts_per_s,
            outputs_per_s=outputs_per_s,
        )

    def _prefill_by_class(self) -> dict[str, int]:
        found: Counter[str] = Counter()
        for job in self.claimed.values():
            found[job.sla] += max(0, job.num_tokens - job.computed - 1)
        return dict(found)

    def find(self, session: str, tokens: int) -> int:
        """Of a conversation's first `tokens`, those that lie in memory: whole blocks."""
        count, find = 0, self.engine.memory.pool.find
        while count < tokens // BLOCK_TOKENS and find(f"{session} {count}".encode()) is not None:
            count += 1
        return count * BLOCK_TOKENS

    # --- coming ---

    def _restored_at(self, job: Job) -> float:
        """When what is known of it is in memory. Sets job.computed: what need not be computed."""
        session = job.wish.session
        here = 0 if session is None else self.find(session, job.computed)
        if not self.has_files:
            job.computed = here
        if job.computed <= here:
            return self.clock.now_ms
        return self._read(self.hardware.cost.restore_ms(job.computed - here))

    def _add(self, job: Job) -> None:
        if self.claimed.get(job.id) is job:  # it may have been taken away meanwhile
            self.engine.add(job, self.table)

    # --- tokens ---

    def _tokens(self, job: Job) -> None:
        if job.made >= job.wish.output:
            self._finish(job)
        elif job.id not in self._first:
            self._first.add(job.id)
            self.on_first(job)

    def _finish(self, job: Job) -> None:
        assert job.made == job.wish.output, (job.id, job.made, job.wish.output)
        self.lately.ended(job.sla, job.made)
        if job.wish.session is not None:
            self._keep(job.wish.session, self.engine.sequences[job.id])
        self._forget(job)
        job.state, job.end_ms = FINISHED, self.clock.now_ms
        self.on_end(job)

    def _keep(self, session: str, sequence: Sequence) -> None:
        """Its full blocks have a name, under which the next turn finds them."""
        pool = self.engine.memory.pool
        for index in range(sequence.num_cached // BLOCK_TOKENS):
            pool.keep(sequence.blocks[index], f"{session} {index}".encode())

    def _forget(self, job: Job) -> None:
        del self.claimed[job.id]
        self._first.discard(job.id)
        self.engine.remove(job)

    # --- leaving ---

    def _leave(self, job: Job, then: Callable[[], None]) -> None:
        if self.claimed.get(job.id) is not job:
            return  # it has ended
        sequence = self.engine.sequences.get(job.id)
        job.state = MOVING
        if sequence is None:  # not restored yet: all that is known of it is in files
            del self.claimed[job.id]
            return self.clock.after(0.0, then)
        self._forget(job)
        if not self.has_files:
            job.computed = 0
            return self.clock.after(0.0, then)
        if job.is_behind:  # full blocks were written while it ran
            job.in_files = max(job.in_files, job.computed // BLOCK_TOKENS * BLOCK_TOKENS)
        return self._write(job, then)

    def _make_room(self) -> None:
        """What the engine's driver does for who is first and waits for memory."""
        scheduler = self.engine.scheduler
        if not (self.engine.kind.suspends and self.has_files):
            return
        scheduler.admit(int(self.clock.now_ms))
        for victim in scheduler.to_suspend(self._promised):
            job = self.engine.jobs[victim.id]
            self.engine.memory.free(victim)
            scheduler.suspend(victim)
            self._write(job, partial(scheduler.written, victim))
        back = scheduler.to_resume()
        if back is not None:
            done_ms = self._read(self.hardware.cost.restore_ms(self.engine.jobs[back.id].computed))
            self.clock.at(done_ms, partial(self.engine.post, partial(self._resume, back)))

    def _resume(self, sequence: Sequence) -> None:
        if self.engine.sequences.get(sequence.id) is sequence:
            self.engine.scheduler.resume(sequence)
            job = self.engine.jobs[sequence.id]
            sequence.num_cached = min(job.computed, len(sequence.token_ids) - 1)

    # --- files ---

    def _read(self, ms: float) -> float:
        """When a read that is asked for now is done."""
        self._reads_until = max(self.clock.now_ms, self._reads_until) + ms
        return self._reads_until

    def _write(self, job: Job, then: Callable[[], None]) -> None:
        """Its memory, just freed, is nobody's until what files lack is written."""
        pool, unwritten = self.engine.memory.pool, max(0, job.computed - job.in_files)
        count = min(-(-unwritten // BLOCK_TOKENS), pool.num_free)
        self._written[job.id] = pool.allocate(count)
        self._promised += count
        job.in_files = job.computed
        ms = self.hardware.cost.write_ms(unwritten)
        self._writes_until = max(self.clock.now_ms, self._writes_until) + ms
        self.clock.at(self._writes_until, partial(self._wrote, job, then))

    def _wrote(self, job: Job, then: Callable[[], None]) -> None:
        def now() -> None:
            blocks = self._written.pop(job.id)
            self._promised -= len(blocks)
            self.engine.memory.pool.free(blocks)
            then()

        self.engine.post(now)
