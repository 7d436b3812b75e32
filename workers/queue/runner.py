"""What a pool's worker needs of its engine, and what the engine calls while it computes."""

from collections.abc import Callable, Sequence
from typing import Protocol

from workers.engine.engine import Output, StepAbandoned
from workers.engine.load import EngineLoad
from workers.queue.pulse import Pulse
from workers.wire import Request, TokenEvent


class Runner(Protocol):
    """What this worker needs of an engine (workers.engine.engine.Engine)."""

    is_stalled: bool

    def prepare(self, request: Request, /) -> None: ...
    def add(self, request: Request, journal: Sequence[TokenEvent] = (), /) -> None: ...
    def cancel(self, request_id: str) -> None: ...
    def promote(self, request_id: str, sla: str) -> None: ...
    def drop(self, request_id: str) -> None: ...
    def has_work(self) -> bool: ...
    def step(self) -> list[Output]: ...
    def load(self) -> EngineLoad: ...
    def rest(self) -> None: ...


def after_layer(pulse: Pulse) -> Callable[[], None]:
    """What the engine calls after each layer: it moves; a stopping worker leaves a long step."""

    def moved() -> None:
        pulse.progress += 1
        if pulse.is_patience_over:
            raise StepAbandoned

    return moved
