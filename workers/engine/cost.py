"""What a step costs on this machine, learned while it runs: the numbers of a CostModel.

Five numbers, none negative, each times what a step holds:

    ms ~ fixed + decode * decodes + context * (1000 positions that decodes read)
               + prefill * tokens + prefill_context * (1000 pairs of a token and one before it)

They are those that fit the steps seen lately best, relative errors squared; where steps do not tell
two of them apart, each stays where it was (at the start: where the calibration put it). Steps that
prefill and steps that do not fade separately, so that an hour of decodes does not forget what a
prompt costs. A step that took long by accident counts little: errors are taken relative to the
larger of what it took and what was predicted. A machine that becomes slower or faster all at once
is followed by one factor on everything, the median of the last few steps' ratios, until the numbers
have caught up.

Nothing here touches a result: law one holds for every way of cutting a prompt.
"""

from typing import Final, NamedTuple

import msgspec

from workers.cost import CostModel

FADE: Final = (
    0.97  # weight of the past when a step is seen: the last thirty or so of its kind count
)
ERROR_FADE: Final = 0.95
SPEED_FADE: Final = 0.8  # of prefill_tokens_per_s: the last five or so
NUM_RATIOS: Final = 7  # steps whose median ratio is the factor
SWEEPS: Final = 4  # over the five numbers after each step
# Towards where a number was at the start, relative to what steps say of it: what could be due to
# context or to the tokens themselves is taken for the latter.
PULLS: Final = (1e-3, 1e-3, 5e-3, 1e-3, 5e-3)
ROUNDS: Final = 100  # through measured steps, until their numbers stand
UNPROVEN: Final = 0.5  # error of what a few steps at start say, until real ones were seen
LEAST_MS: Final = 0.05  # a step is not predicted to take less, so that errors have a measure


class Work(NamedTuple):
    """What one step computes.

    decodes  sequences that get one token      context          positions that they read, in all
    prefill  tokens of prompts                 prefill_context  positions before each, on average
    """

    decodes: int
    context: int = 0
    prefill: int = 0
    prefill_context: float = 0.0

    def parts(self) -> list[float]:
        """In the order of the five numbers."""
        prefill = float(self.prefill)
        pairs = prefill * self.prefill_context / 1000
        return [1.0, float(self.decodes), self.context / 1000, prefill, pairs]


class Seen:
    """The steps of one kind: fading means of the products that least squares needs."""

    def __init__(self) -> None:
        self.count = 0
        self.products = [[0.0] * 5 for _ in range(5)]
        self.sums = [0.0] * 5

    def add(self, parts: list[float], ms: float, weight: float) -> None:
        """One step: its five parts, its time, and how much it counts."""
        self.count += 1
        fade = min(FADE, 1 - 1 / self.count)
        for i in range(5):
            share = (1 - fade) * weight * parts[i]
            row = self.products[i]
            for j in range(5):
                row[j] = fade * row[j] + share * parts[j]
            self.sums[i] = fade * self.sums[i] + share * ms


class StepCost:
    """The online estimate of one engine."""

    def __init__(self, start: CostModel | None = None) -> None:
        """start: what was measured before (calibrate.py); None: nothing is known."""
        self._start = CostModel(fixed_ms=0.0) if start is None else start
        self._is_known = start is not None
        self._numbers = numbers_of(self._start)
        self._start_numbers = list(self._numbers)
        self._decode, self._prefill = Seen(), Seen()
        self._last: list[tuple[list[float], float]] = []  # parts and ms
        self._factor = 1.0
        self._error = self._start.error
        self._samples = self._start.samples
        self._model: CostModel | None = None
        self._prefill_speed = 0.0

    @property
    def is_known(self) -> bool:
        """Whether anything is known at all."""
        return self._is_known

    @property
    def prefill_tokens_per_s(self) -> float:
        """Of steps that prefill; 0.0 while none was seen."""
        return self._prefill_speed

    def observe(self, ms: float, work: Work) -> None:
        """A step of this work took so long."""
        parts = work.parts()
        ms = max(0.0, ms)
        seen = self._prefill if work.prefill > 0 else self._decode
        if work.prefill > 0:
            speed = 1000 * (work.decodes + work.prefill) / max(ms, LEAST_MS)
            fade = SPEED_FADE if seen.count > 0 else 0.0
            self._prefill_speed = fade * self._prefill_speed + (1 - fade) * speed
        predicted = self._judge(parts, ms)
        measure = max(predicted, ms, LEAST_MS)
        seen.add(parts, ms, 1 / (measure * measure))
        self._is_known = True
        self._samples += 1
        self._solve(SWEEPS)
        self._follow(parts, ms)
        self._model = None

    def model(self) -> CostModel:
        """The numbers as they are now."""
        if self._model is None:
            fixed, decode, context, prefill, prefill_context = [
                number * self._factor for number in self._numbers
            ]
            if self._prefill.count == 0 and self._start.samples == 0 and prefill == 0:
                prefill = decode + fixed  # not seen: for the first chunk, think badly of it
            self._model = msgspec.structs.replace(
                self._start,
                fixed_ms=fixed,
                decode_ms=decode,
                context_us=1000 * context,
                prefill_ms=prefill,
                prefill_context_us=1000 * prefill_context,
                error=self._error,
                samples=self._samples,
            )
        return self._model

    def _judge(self, parts: list[float], ms: float) -> float:
        """What was predicted, 0 for the first of its kind; notes how wrong it was."""
        raw = self._raw(parts)
        if not self._is_known or raw < LEAST_MS:
            return 0.0
        predicted = raw * self._factor
        self._error *= ERROR_FADE
        self._error += (1 - ERROR_FADE) * abs(ms - predicted) / max(ms, LEAST_MS)
        return predicted

    def _follow(self, parts: list[float], ms: float) -> None:
        """The factor: how much longer the last steps took than the numbers say."""
        self._last.append((parts, max(ms, LEAST_MS)))
        del self._last[:-NUM_RATIOS]
        if len(self._last) == NUM_RATIOS:
            ratios = sorted([ms / max(self._raw(parts), LEAST_MS) for parts, ms in self._last])
            self._factor = ratios[NUM_RATIOS // 2]

    def _raw(self, parts: list[float]) -> float:
        """By the numbers alone."""
        return sum([number * part for number, part in zip(self._numbers, parts, strict=True)])

    def _solve(self, sweeps: int) -> None:
        """Least squares by one number after the other, none below 0; it goes on where it was."""
        first, second, numbers = self._decode, self._prefill, self._numbers
        for _ in range(sweeps):
            for i in (3, 1, 4, 2, 0):
                own = first.products[i][i] + second.products[i][i]
                if own <= 1e-12:
                    continue
                rest = first.sums[i] + second.sums[i]
                one, other = first.products[i], second.products[i]
                for j in range(5):
                    if j != i:
                        rest -= (one[j] + other[j]) * numbers[j]
                pull = PULLS[i] * own
                numbers[i] = max(0.0, (rest + pull * self._start_numbers[i]) / (own + pull))


def numbers_of(model: CostModel) -> list[float]:
    """Milliseconds for each of the five parts of a step."""
    return [
        model.fixed_ms,
        model.decode_ms,
        model.context_us / 1000,
        model.prefill_ms,
        model.prefill_context_us / 1000,
    ]


def learn(steps: list[tuple[float, Work]]) -> CostModel:
    """The numbers that fit these measured steps best, all of them alike."""
    cost = StepCost()
    for _ in range(ROUNDS):
        for ms, work in steps:
            cost.observe(ms, work)
    return msgspec.structs.replace(cost.model(), samples=0, error=UNPROVEN)
