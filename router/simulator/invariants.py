"""What must hold after every event of a simulated node, whatever comes.

1. a request that has not ended is in exactly one place; what was accepted has ended or is here
2. nothing ends twice, and nobody has more output than was asked for
3. budgets: places, blocks, state slots, tokens of a step
4. nothing is computed twice, where files keep it and no pool was lost
5. nobody runs for whom a more urgent one that could run waits (Scheduler.check_order: but for
   guarded ones, and those behind one that waits for memory)
6. a class that has something waiting gets something done, at last when its patience is over: from
   then on no pool claims others first, nor stands idle (what is claimed goes on to its end). Of
   ours alone: baselines that go by arrival or by class promise nobody an end of his waiting
"""

from collections import Counter
from typing import Final

from router.simulator.job import MOVING, TERMINAL, Job
from router.simulator.node import Node
from router.simulator.pool import SimPool

THOROUGH_EVERY: Final = 499  # events; counting all blocks takes long
SPARE_MS: Final = 120_000.0  # of a class's patience: a step, a move, a guard's turn
IDLE_MS: Final = 2_000.0  # a node that is without requests for so long is idle


class Broken(AssertionError):
    """An invariant does not hold: which, when, and with what values."""


class Invariants:
    """Of one node; check() after every event. loses: pools may be lost, and with them work."""

    def __init__(self, node: Node, *, loses: bool = False) -> None:
        self.node, self.loses = node, loses
        self.num_checks = 0
        kinds = [pool.engine.kind for pool in node.pools.values()]
        self._has_patience = all(kind.order == "class" for kind in kinds)
        self._ended: set[str] = set()
        self._moved_ms: dict[str, float] = {}  # when a class last got something done
        self._done: Counter[str] = Counter()  # tokens of each class, of who is here or has ended
        self._gone: Counter[str] = Counter()
        self._num_taken, self._taken_ms = 0, 0.0  # claims of all pools, and when the last was
        self._busy_ms = 0.0  # when some pool last had a request

    def ended(self, job: Job) -> None:
        """Told of each end."""
        self._hold(job.id not in self._ended, "ends twice", job.id)
        self._ended.add(job.id)
        self._hold(job.state in TERMINAL, "ends in no end", job.id, job.state)
        self._hold(job.made <= job.wish.output, "has too much output", job.id, job.made)
        needed = job.wish.prompt + job.wish.output - job.known
        if self.node.has_files and not self.loses:
            self._hold(job.computed_in_all <= needed, "was computed twice", job.id)
        self._gone[job.sla] += job.computed_in_all + 1

    def check(self) -> None:
        self.num_checks += 1
        self._check_places()
        for pool in self.node.pools.values():
            self._check_pool(pool)
        if self._has_patience:
            self._check_progress()

    def _check_places(self) -> None:
        node = self.node
        there = Counter(job.id for job in node.held)
        for line in (*node.streams.values(), *node.queues.values()):
            there.update(job.id for job in line)
        for pool in node.pools.values():
            there.update(list(pool.claimed))
        there.update(job.id for job in node.jobs.values() if job.state == MOVING)
        self._hold(there.keys() == node.jobs.keys(), "is lost", there.keys() ^ node.jobs.keys())
        self._hold(all(n == 1 for n in there.values()), "is in two places", there.most_common(1))
        self._hold(node.num_accepted == node.num_ended + len(node.jobs), "is not accounted for")

    def _check_pool(self, pool: SimPool) -> None:
        engine, most = pool.engine, pool.hardware.max_batch
        memory = engine.memory
        claimed = len(pool.claimed)
        steps = len(self.node.table.names)  # each class takes the places of less urgent ones
        self._hold(claimed <= steps * most, "claims too many", pool.name, claimed)
        self._hold(len(engine.scheduler.running) <= most, "runs too many", pool.name)
        self._hold(0 <= memory.pool.num_free <= memory.pool.num_blocks, "memory", pool.name)
        if self.num_checks % THOROUGH_EVERY == 0:
            memory.pool.check()
            engine.scheduler.check()
            if memory.states is not None:
                memory.states.check()

    def _check_progress(self) -> None:
        """By class: what its requests have computed in all, what they are computing, claims."""
        now_ms, here = self.node.clock.now_ms, self.node.jobs.values()
        pools = self.node.pools.values()
        at_work = {sla for pool in pools for sla in pool.engine.classes_at_work}
        taken = sum((pool.taken for pool in pools), Counter[str]())
        done = self._gone + taken
        for job in here:
            done[job.sla] += job.computed_in_all
        for name in {job.sla for job in here}:
            if done[name] != self._done[name] or name in at_work or name not in self._moved_ms:
                self._moved_ms[name] = now_ms
        if taken.total() != self._num_taken:
            self._num_taken, self._taken_ms = taken.total(), now_ms
        if any(pool.claimed for pool in pools):
            self._busy_ms = now_ms
        last_ms = max(self._taken_ms, now_ms if now_ms - self._busy_ms > IDLE_MS else 0.0)
        for sla in self.node.table:
            if not any(job.sla == sla.name for job in here):
                self._moved_ms.pop(sla.name, None)
                continue
            late_ms = self._moved_ms[sla.name] + sla.handicap_ms + SPARE_MS
            self._hold(last_ms <= late_ms, "starves", sla.name)
        self._done = done

    def _hold(self, holds: bool, what: str, *values: object) -> None:
        if not holds:
            told = " ".join(map(str, values))
            raise Broken(f"at {self.node.clock.now_ms:.0f} ms: {what}: {told}")
