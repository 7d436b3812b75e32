"""Our side of `lockstep bench cpu`: the pools' own engine step, with sampling, text and digest.

python -m ingest.command.bench.ours MODEL_FOLDER THREADS MAX_SESSIONS MAX_SESSION_TOKENS [ISA]
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ingest.command.bench.cases import STEP_TOKENS, Case, prompt, serve
from kernels.cpu import _cpu
from kernels.cpu.host import CpuOps
from workers.engine.engine import Engine
from workers.engine.limits import EngineLimits, blocks_for
from workers.model.build import load_model
from workers.model.pack import Weights
from workers.settings import settings
from workers.text.text_model import TextModel
from workers.wire import Request, SamplingParams, TokenEvent

ROOM = 1 << 20  # more output tokens than any case has


class Side:
    """An engine that is asked for one case after the other."""

    def __init__(self, engine: Engine, text: TextModel) -> None:
        self.engine = engine
        self.text = text
        self.decoding: tuple[int, int] | None = None  # sessions and context of what is running
        self.running: list[str] = []
        engine._home.kv.blocks.fill(0.5)  # pages of its own, as computed KV has

    def measure(self, case: Case) -> float:
        """Seconds of the case; of in_c the share of its time."""
        if case.phase in ("prefill", "extend"):
            return self.prefill(case)
        if self.decoding != (case.sessions, case.context):
            self.prepare(case)
        if case.phase == "in_c":
            return share_in_c(lambda: self.decode(case))
        return self.decode(case)

    def prefill(self, case: Case) -> float:
        """Seconds until a prompt has its first token: of all of it, or of its last step."""
        self.drop()
        self.add(0, case.context, max_tokens=1)
        if case.phase == "extend":
            sequence = self.engine._sequences[self.running[-1]]
            sequence.num_cached = case.context - STEP_TOKENS
        begin = time.perf_counter()
        while not any(isinstance(o.event, TokenEvent) for o in self.engine.step()):
            pass
        seconds = time.perf_counter() - begin
        self.drop()
        return seconds

    def prepare(self, case: Case) -> None:
        """Sessions whose context is there: its KV is of any values, the time does not depend on it.

        The step that gives each its first token is not timed.
        """
        self.drop()
        for session in range(case.sessions):
            self.add(session, case.context + 1, max_tokens=ROOM)
            self.engine._sequences[self.running[-1]].num_cached = case.context
        self.engine.step()
        self.decoding = (case.sessions, case.context)

    def decode(self, case: Case) -> float:
        begin = time.perf_counter()
        for _ in range(case.steps):
            outputs = self.engine.step()
            assert len(outputs) == case.sessions, outputs
        return time.perf_counter() - begin

    def add(self, session: int, num_tokens: int, *, max_tokens: int) -> None:
        token_ids = tuple(prompt(session, num_tokens, self.text.vocab_size))
        params = SamplingParams(max_tokens=max_tokens, temperature=0.0)
        request_id = f"session-{session}"
        self.engine.add(
            Request(
                id=request_id,
                model=self.text.name,
                token_ids=token_ids,
                arrival_ms=0,
                params=params,
            )
        )
        self.running.append(request_id)

    def drop(self) -> None:
        for request_id in self.running:
            self.engine.drop(request_id)
        self.running, self.decoding = [], None


def share_in_c(decode: Callable[[], float]) -> float:
    """The share of a decode's time that passes inside calls of the extension."""
    inside = [0.0]

    def timed(call: Callable[..., None]) -> Callable[..., None]:
        def wrapped(*arguments: Any) -> None:
            begin = time.perf_counter()
            call(*arguments)
            inside[0] += time.perf_counter() - begin

        return wrapped

    ops = {n: f for n, f in vars(_cpu).items() if callable(f) and not n.startswith("_")}
    for name, call in ops.items():
        setattr(_cpu, name, timed(call))
    seconds = decode()
    for name, call in ops.items():
        setattr(_cpu, name, call)
    return inside[0] / seconds


def work_of(weights: Weights) -> dict[str, int]:
    """Multiply-adds and bytes of the matrices that a step multiplies with, and bytes of KV."""
    entries = [e for e in weights.entries() if len(e.shape) == 2]
    config = weights.config
    names = {entry.name for entry in entries}
    is_head = {
        entry.name: entry.name == "output.weight"
        or (entry.name == "token_embd.weight" and "output.weight" not in names)
        for entry in entries
    }
    layers = [e for e in entries if e.name.startswith("blk.")]
    heads = [e for e in entries if is_head[e.name]]
    return {
        "layer_macs": sum(e.shape[0] * e.shape[1] for e in layers),
        "head_macs": sum(e.shape[0] * e.shape[1] for e in heads),
        "weight_bytes": sum(e.num_bytes for e in layers + heads),
        "kv_bytes": config.num_kv_layers * config.num_kv_heads * config.head_dim * 4,
    }


def main(folder: str, threads: str, max_sessions: str, max_tokens: str, isa: str = "") -> None:
    """Loads the model and answers cases."""
    sessions, ops = int(max_sessions), CpuOps(int(threads), isa or None)
    text = TextModel.load(Path(folder))
    text.end_ids = frozenset()  # a sequence that ended early would not be measured
    text.context_length = int(max_tokens)
    limits = EngineLimits(
        max_batch=sessions,
        max_step_tokens=STEP_TOKENS + sessions,
        step_budget_ms=1,  # not looked at: the chunk is fixed
        num_blocks=sessions * blocks_for(int(max_tokens)),
        chunk=STEP_TOKENS,
    )
    model = load_model(
        Path(folder),
        ops,
        max_step_tokens=limits.max_step_tokens,
        max_logit_rows=sessions,
        in_huge_pages=settings().huge_pages,
    )
    engine = Engine(model, text, ops, limits, after_layer=lambda: None, now_ms=lambda: 0)
    about = {
        "name": "lockstep",
        "isa": ops.isa,
        **work_of(Weights.open(Path(folder) / "weights.pack")),
    }
    serve(Side(engine, text).measure, about)


if __name__ == "__main__":
    main(*sys.argv[1:])
