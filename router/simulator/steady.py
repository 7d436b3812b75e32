"""How often a scheduler would say the same again, so that the simulator need not ask each time.

Of a step of decodes alone, in which everybody who runs takes part: until somebody ends or comes,
until the decodes have grown so long that not all of them fit what is promised, or until time
itself changes who is first (a guard ends, a class has waited too long). steady_steps looks at the
second, steady_until at the third, whoever asks at the first. Held to steps one by one in
tests/router/simulator/test_steps.py.
"""

from typing import Final

from workers.engine.chunks import Scheduled
from workers.engine.pace import decodes_of
from workers.engine.patience import patience_ms
from workers.engine.scheduler import Scheduler

NEVER: Final = 1 << 62  # ms


def steady_steps(scheduler: Scheduler, parts: list[Scheduled], most: int) -> int:
    """How many steps, 1 to most, would be like the one that was just scheduled."""
    if most == 1 or len(parts) < len(scheduler.running):
        return 1
    if all_fit(scheduler, parts, most - 1):
        return most
    low, high = 1, most
    while high - low > 1:  # the longer they are, the less they fit
        middle = (low + high) // 2
        low, high = (middle, high) if all_fit(scheduler, parts, middle - 1) else (low, middle)
    return low


def all_fit(scheduler: Scheduler, parts: list[Scheduled], longer: int) -> bool:
    """Whether everybody would decode if each were so many tokens longer."""
    running = scheduler.running
    if running[0].level == running[-1].level:
        return True
    for part in parts:
        part.sequence.num_cached += longer
    fitting, _ = decodes_of(running, scheduler.cost.model(), 0)
    for part in parts:
        part.sequence.num_cached -= longer
    return len(fitting) == len(running)


def steady_until(scheduler: Scheduler) -> int:
    """When time itself may change who is first, ms; nobody coming or going."""
    guards = [s.guarded_until for s in scheduler.running if s.guarded_until > 0]
    return min([*guards, *unserved(scheduler)], default=NEVER)


def unserved(scheduler: Scheduler) -> list[int]:
    """When each class of which nobody runs has waited too long."""
    served = {sequence.level for sequence in scheduler.running}
    found = []
    for level, line in scheduler.places.lines.items():
        if line.num_members and level not in served:
            patience = [patience_ms(s) for s in scheduler.waiting if s.level == level]
            found.append(line.served_ms + min(patience, default=0))
    return found


def repeated(scheduler: Scheduler, parts: list[Scheduled], times: int, now_ms: int) -> None:
    """The scheduler is told what it was not asked: the same step, so often, the last one now."""
    for part in parts:
        sequence = part.sequence
        sequence.served_ms = now_ms
        line = scheduler.places.lines[sequence.level]
        line.serve(sequence.request.tenant, times, now_ms)
