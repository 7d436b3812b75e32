"""The CPU's side, in a process of its own: the same weights, made before it was forked.

KV and state lie in memory that both processes share, so that a session moves by being written
there. It is asked through a pipe, does one thing at a time and answers each with one message.
"""

import mmap
import multiprocessing
import os
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from ingest.command.bench.gpu.plan import Plan
from ingest.command.bench.gpu.seat import Choice, Seat, state_shapes_of
from ingest.command.bench.gpu.steps import Layout
from kernels.arrays import HOST, Array, array_bytes
from kernels.cpu.host import CpuOps
from kernels.ops import KvArena, StateArena
from workers.engine.limits import kv_shape_of
from workers.model.build import architecture_of
from workers.model.decoder import Decoder
from workers.model.pack import Weights


def shared(shape: Sequence[int], value: type[np.generic]) -> Array:
    """Memory that a forked process shares, all zeros."""
    memory = mmap.mmap(-1, array_bytes(shape, value))
    return np.frombuffer(memory, value).reshape(shape)


class CpuSide:
    """Forked before the GPU is opened: a CUDA context does not survive a fork."""

    def __init__(self, plan: Plan, weights: Weights, *, blocks: int, slots: int) -> None:
        conv, delta = state_shapes_of(weights.config, slots)
        self.kv = KvArena(shared(kv_shape_of(weights.config, blocks), np.float16))
        self.state = StateArena(shared(conv, np.float32), shared(delta, np.float32))
        fork = multiprocessing.get_context("fork")
        self._pipe, theirs = fork.Pipe()
        self._process = fork.Process(
            target=_serve,
            args=(theirs, self._pipe, plan, weights, self.kv, self.state),
            daemon=True,
        )
        self._process.start()
        theirs.close()

    def ask(self, method: str, *arguments: Any) -> None:
        """Of Seat; answer() waits for it."""
        self._pipe.send((method, arguments))

    def answer(self) -> tuple[float, Any]:
        """Seconds it took, and what it gave."""
        seconds, given = self._pipe.recv()
        return float(seconds), given

    def is_done(self) -> bool:
        """Whether answer() would not wait."""
        return self._pipe.poll()

    def carry_on(self, layout: Layout, token_id: int, position: int, count: int) -> list[Choice]:
        self.ask("carry_on", layout, token_id, position, count)
        found: list[Choice] = self.answer()[1]
        return found

    def stop(self) -> None:
        self._process.kill()
        self._process.join()


def _serve(
    pipe: Connection,
    other_end: Connection,
    plan: Plan,
    weights: Weights,
    kv: KvArena,
    state: StateArena,
) -> None:
    """The process: until the other one ends."""
    other_end.close()  # or its end would never be seen
    ops = CpuOps(plan.threads)
    layers = architecture_of(weights.config.architecture).layers(weights)
    rows = max(1, plan.sizes.cpu_sessions)
    model = Decoder(weights, layers, ops, max_step_tokens=rows, max_logit_rows=rows)
    seat = Seat(model, ops, HOST, kv, state)
    while True:
        try:
            method, arguments = pipe.recv()
            begin = time.perf_counter()
            given = getattr(seat, method)(*arguments)
            pipe.send((time.perf_counter() - begin, given))
        except (EOFError, BrokenPipeError):
            os._exit(0)
