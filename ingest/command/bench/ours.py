"""Our side of `lockstep bench cpu`: the pools' own engine step, with sampling, text and digest.

python -m ingest.command.bench.ours MODEL_FOLDER THREADS MAX_SESSIONS MAX_SESSION_TOKENS
"""

import sys
import time
from pathlib import Path

from ingest.command.bench.cases import STEP_TOKENS, Case, prompt, serve
from kernels.cpu.host import CpuOps
from workers.engine.engine import Engine
from workers.engine.limits import EngineLimits, blocks_for
from workers.model.build import load_model
from workers.text.text_model import TextModel
from workers.wire import Request, SamplingParams, TokenEvent


class Side:
    """An engine that is asked for one case after the other."""

    def __init__(self, engine: Engine, text: TextModel) -> None:
        self.engine = engine
        self.text = text

    def measure(self, case: Case) -> float:
        """Seconds of the case."""
        ids = [f"{case.phase}-{session}" for session in range(case.sessions)]
        # prefill ends with each first token; decode must outlast the last session's prefill
        slack = 2 + case.sessions * (1 + case.prompt_tokens // STEP_TOKENS)
        max_tokens = 1 if case.phase == "prefill" else case.steps + slack
        for session, request_id in enumerate(ids):
            self.add(
                request_id, prompt(session, case.prompt_tokens, self.text.vocab_size), max_tokens
            )
        begin = time.perf_counter()
        waiting = set(ids)
        while waiting:
            waiting -= {o.request_id for o in self.engine.step() if isinstance(o.event, TokenEvent)}
        if case.phase == "decode":
            begin = time.perf_counter()
            for _ in range(case.steps):
                outputs = self.engine.step()
                assert len(outputs) == case.sessions, outputs
        seconds = time.perf_counter() - begin
        for request_id in ids:
            self.engine.drop(request_id)
        return seconds

    def add(self, request_id: str, token_ids: list[int], max_tokens: int) -> None:
        params = SamplingParams(max_tokens=max_tokens, temperature=0.0)
        self.engine.add(
            Request(
                id=request_id,
                model=self.text.name,
                token_ids=tuple(token_ids),
                arrival_ms=0,
                params=params,
            )
        )


def main(folder: str, threads: str, max_sessions: str, max_tokens: str) -> None:
    """Loads the model and answers cases."""
    sessions, ops, text = int(max_sessions), CpuOps(int(threads)), TextModel.load(Path(folder))
    text.end_ids = frozenset()  # a sequence that ended early would not be measured
    limits = EngineLimits(
        max_batch=sessions,
        max_step_tokens=STEP_TOKENS + sessions,
        step_budget_ms=1,  # not looked at: the chunk is fixed
        num_blocks=sessions * blocks_for(int(max_tokens)),
        chunk=STEP_TOKENS,
    )
    model = load_model(
        Path(folder), ops, max_step_tokens=limits.max_step_tokens, max_logit_rows=sessions
    )
    engine = Engine(model, text, ops, limits, after_layer=lambda: None, now_ms=lambda: 0)
    serve(Side(engine, text).measure, {"name": "lockstep"})


if __name__ == "__main__":
    main(*sys.argv[1:])
