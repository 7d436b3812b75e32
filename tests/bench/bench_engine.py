"""What the engine itself costs per decode step: everything but the model's forward.

    python tests/bench/bench_engine.py

The model is a stub that returns fixed random logits, with a vocabulary as large as the default
model's. Medians over steps, in microseconds; "plan" is scheduling and building the arrays, "rest"
is sampling, digests, texts and events.

Then what the scheduler alone costs with 64 sessions of three classes and four tenants that run, as
many that wait, and a prompt that is prefilled: "decide" is schedule(), "learn" what the cost model
learns of the step.
"""

import statistics
import time
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np

from kernels.cpu.host import CpuOps
from kernels.ops import F32, KvArena, Step
from kv_tier.block_pool import BlockPool
from workers.cost import CostModel
from workers.engine.chunks import work_of
from workers.engine.cost import StepCost
from workers.engine.engine import Engine
from workers.engine.limits import EngineLimits
from workers.engine.memory import Memory
from workers.engine.scheduler import Scheduler
from workers.engine.sequence import Sequence
from workers.wire import Request, SamplingParams

VOCAB, NUM_STEPS = 49_152, 400
CASES = {
    "greedy": {"temperature": 0.0},
    "temperature 1": {},
    "top-p 0.95, top-k 40": {"top_p": 0.95, "top_k": 40},
    "top-p 0.95": {"top_p": 0.95},
    "greedy, 5 logprobs": {"temperature": 0.0, "logprobs": 5},
}


class Letters:
    """A text model of one letter."""

    context_length, vocab_size, weights_digest = 8192, VOCAB, ""
    end_ids: frozenset[int] = frozenset()
    hidden_ids: frozenset[int] = frozenset()

    def token_bytes(self, token_id: int) -> bytes:
        return b"a"


class StubModel:
    """Normal logits, std 3, without computing anything; notes when it was called."""

    config = SimpleNamespace(num_kv_layers=1, num_kv_heads=1, head_dim=8, state=None)

    def __init__(self) -> None:
        self._logits = np.random.default_rng(0).normal(0, 3, (16, VOCAB)).astype(np.float32)
        self.called_s: list[float] = []

    def forward(self, step: Step, kv: KvArena, _state, after_layer: Callable[[], None]) -> F32:
        self.called_s.append(time.perf_counter())
        return self._logits[: step.logit_rows.size]


def measure(num_sequences: int, params: dict[str, float]) -> tuple[float, float]:
    """(plan, rest) in microseconds per decode step."""
    model = StubModel()
    engine = Engine(
        model,
        Letters(),
        CpuOps(1),
        EngineLimits(16, 512, 10_000, 64),
        after_layer=lambda: None,
        now_ms=lambda: time.time_ns() // 1_000_000,
    )
    for i in range(num_sequences):
        sampling = SamplingParams(max_tokens=NUM_STEPS + 100, seed=i, **params)
        engine.add(Request(id=str(i), model="", token_ids=(1, 2, 3), arrival_ms=0, params=sampling))
    for _ in range(20):
        engine.step()
    plan, rest = [], []
    for _ in range(NUM_STEPS):
        begin = time.perf_counter()
        engine.step()
        end = time.perf_counter()
        plan.append(model.called_s[-1] - begin)
        rest.append(end - model.called_s[-1])
    return statistics.median(plan) * 1e6, statistics.median(rest) * 1e6


def decide(num_sessions: int = 64) -> tuple[float, float]:
    """(decide, learn) in microseconds per step."""
    cost = StepCost(CostModel(fixed_ms=20, decode_ms=0.5, prefill_ms=0.3, context_us=100))
    memory = Memory(BlockPool(40 * num_sessions))
    limits = {"max_batch": num_sessions, "max_step_tokens": 512, "budget_ms": 200}
    scheduler = Scheduler(memory, cost, **limits)
    for i in range(2 * num_sessions):
        params = SamplingParams(max_tokens=4000)
        request = Request(
            id=str(i),
            tenant=f"t{i % 4}",
            model="",
            token_ids=(1,) * (20 + 40_000 * (i == 0)),
            sla=("realtime", "standard", "batch")[i % 3],
            arrival_ms=i,
            params=params,
        )
        scheduler.add(Sequence(request, None, 0, 1 << 20))
    decides, learns = [], []
    for step in range(NUM_STEPS):
        begin = time.perf_counter()
        parts = scheduler.schedule(step)
        middle = time.perf_counter()
        work = work_of(parts)
        cost.observe(20 + 0.5 * work.decodes + 0.3 * work.prefill, work)
        learns.append(time.perf_counter() - middle)
        decides.append(middle - begin)
        for part in parts:
            part.sequence.num_cached = part.end
            if part.reaches_end:
                part.sequence.append(1, frozenset())
    return statistics.median(decides) * 1e6, statistics.median(learns) * 1e6


def main() -> None:
    print("| case | sequences | plan us | rest us | sum per sequence us |")
    print("|---|--:|--:|--:|--:|")
    for name, params in CASES.items():
        for n in (1, 16):
            plan, rest = measure(n, params)
            print(f"| {name} | {n} | {plan:.0f} | {rest:.0f} | {(plan + rest) / n:.0f} |")
    print()
    print("| 64 sessions run, 64 wait | us |")
    print("|---|--:|")
    for name, us in zip(("decide", "learn"), decide(), strict=True):
        print(f"| {name} | {us:.0f} |")


if __name__ == "__main__":
    main()
