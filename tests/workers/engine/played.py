"""A scheduler on virtual time: steps last as long as a cost model says, KV is a number."""

import msgspec

from kv_tier.block_pool import BlockPool
from tests.workers.engine.fake import make_request
from workers.cost import CostModel
from workers.engine.chunks import work_of
from workers.engine.cost import StepCost
from workers.engine.memory import Memory
from workers.engine.scheduler import Scheduler
from workers.engine.sequence import Sequence

MACHINE = CostModel(fixed_ms=20, decode_ms=2, prefill_ms=1)
CONTEXT = 1 << 20


class FiledMemory(Memory):
    """What was put into files of a sequence is there again when it gets its memory."""

    def __init__(self, num_blocks: int) -> None:
        super().__init__(BlockPool(num_blocks))
        self.filed: dict[str, int] = {}

    def reserve(self, sequence: Sequence) -> bool:
        if not super().reserve(sequence):
            return False
        sequence.num_cached = self.filed.get(sequence.id, 0)
        return True


class Played:
    """told: what the scheduler believes of the machine; None: the truth."""

    def __init__(self, *, num_blocks=64, max_batch=4, max_step_tokens=128, told=None):
        self.memory = FiledMemory(num_blocks)
        self.scheduler = Scheduler(
            self.memory,
            StepCost(told or MACHINE),
            max_batch=max_batch,
            max_step_tokens=max_step_tokens,
            budget_ms=200,
        )
        self.now_ms = 1_000_000.0
        self.computed: dict[str, int] = {}  # tokens, each once
        self.first_ms: dict[str, float] = {}
        self.end_ms: dict[str, float] = {}
        self.gaps: dict[str, list[float]] = {}
        self.last_ms: dict[str, float] = {}
        self.displacements = 0

    def add(self, name, num_prompt=10, max_tokens=8, sla="standard", tenant="default", **more):
        wanted = {"max_tokens": max_tokens, "sla": sla, "arrival_ms": int(self.now_ms)} | more
        request = make_request(name, [5] * num_prompt, **wanted)
        request = msgspec.structs.replace(request, tenant=tenant)
        sequence = Sequence(request, None, 0, CONTEXT)
        self.scheduler.add(sequence)
        return sequence

    @property
    def here(self) -> list[Sequence]:
        return self.scheduler.running + self.scheduler.waiting

    def park(self, num_promised=0) -> list[Sequence]:
        """Whoever is to give way leaves for files at once."""
        self.scheduler.admit(int(self.now_ms))
        victims = self.scheduler.to_suspend(num_promised)
        for victim in victims:
            self.memory.filed[victim.id] = victim.num_cached
            self.memory.free(victim)
            self.scheduler.suspend(victim)
        self.displacements += len(victims)
        return victims

    def step(self) -> dict[str, int]:
        """How many tokens of each; all that always holds is checked."""
        scheduler = self.scheduler
        parts = scheduler.schedule(int(self.now_ms))
        scheduler.check()
        scheduler.check_order()
        self.memory.check(self.here)
        assert {part.sequence.id for part in parts} <= {s.id for s in scheduler.running}
        assert sum(part.num_tokens for part in parts) <= scheduler.max_step_tokens
        if not parts:
            self.now_ms += 1
            return {}
        self.now_ms += MACHINE.step_ms(*work_of(parts))
        seen = {part.sequence.id: part.num_tokens for part in parts}
        for part in parts:
            self._advance(part.sequence, part.end, reaches_end=part.reaches_end)
        return seen

    def _advance(self, sequence: Sequence, end: int, *, reaches_end: bool) -> None:
        assert sequence.num_cached == self.computed.get(sequence.id, 0), "computed again"
        self.computed[sequence.id] = sequence.num_cached = end
        if not reaches_end:
            return
        self.first_ms.setdefault(sequence.id, self.now_ms)
        if sequence.id in self.last_ms:
            gap = self.now_ms - self.last_ms[sequence.id]
            self.gaps.setdefault(sequence.id, []).append(gap)
        self.last_ms[sequence.id] = self.now_ms
        sequence.append(50, frozenset())
        if sequence.finish_reason is not None:
            self.end_ms[sequence.id] = self.now_ms
            self.scheduler.remove(sequence)

    def turn(self) -> dict[str, int]:
        """A step of a pool whose files are quick."""
        self.park()
        for sequence in self.scheduler.suspended:
            if sequence.is_away:
                self.scheduler.written(sequence)
        back = self.scheduler.to_resume()
        if back is not None:
            self.scheduler.resume(back)
        return self.step()

    def run(self, most=20_000) -> None:
        for _ in range(most):
            if not self.here:
                return
            self.turn()
        raise AssertionError([s.id for s in self.here])
