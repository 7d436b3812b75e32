"""Other sequences in the same steps, for checks that company changes nothing."""

from typing import Final

import numpy as np

from workers.engine.engine import Engine, Output
from workers.engine.limits import blocks_for
from workers.text.text_model import TextModel
from workers.wire import EndEvent, Request, SamplingParams

LONGEST_PROMPT: Final = 300


class Company:
    """num_others sequences, random but for their seeds; one that ends is followed by another.

    They are more urgent than a request of class "standard": while one of them is prefilled, the
    request beside gets less of a step.
    """

    def __init__(self, text: TextModel, num_others: int, num_steps: int, chunk: int) -> None:
        """num_steps: how long one should last. chunk: prefill tokens of a step."""
        self._text = text
        self._num_others = num_others
        self._longest = min(LONGEST_PROMPT, 4 * chunk, text.context_length // 2)
        self._num_output = min(num_steps, text.context_length - self._longest)
        self._num_added = 0
        self._ids: set[str] = set()

    @property
    def num_blocks(self) -> int:
        """KV blocks that they may hold at once."""
        return self._num_others * blocks_for(self._longest + self._num_output)

    def gather(self, engine: Engine) -> None:
        """Run until each of them has been prefilled once, so that they decode."""
        self.keep(engine)
        silent = set(self._ids)
        while silent:
            for output in engine.step():
                silent.discard(output.request_id)
                self.saw(output)
        self.keep(engine)

    def keep(self, engine: Engine) -> None:
        """Add what is missing."""
        while len(self._ids) < self._num_others:
            request = self._next()
            self._ids.add(request.id)
            engine.add(request)

    def saw(self, output: Output) -> None:
        """An event of one of them."""
        if isinstance(output.event, EndEvent):
            self._ids.remove(output.request_id)

    def _next(self) -> Request:
        number = self._num_added
        self._num_added += 1
        random = np.random.default_rng(number)
        length = int(random.integers(1, self._longest + 1))
        ids = random.integers(0, self._text.vocab_size, length)
        return Request(
            id=f"beside-{number}",
            model=self._text.name,
            token_ids=tuple(ids.tolist()),
            sla="realtime",
            arrival_ms=0,
            params=SamplingParams(max_tokens=self._num_output, seed=number),
        )
