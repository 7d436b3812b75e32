"""What the next request of each class will be like: as its last ones were, lately most of all."""

from collections.abc import Iterable
from typing import Final

from router.pools import Wanted

FADE: Final = 0.9  # weight of the past
FIRST: Final = 256  # tokens of prompt and output, while a class has had none


class Typical:
    """One router's."""

    def __init__(self, classes: Iterable[str]) -> None:
        self._tokens = {sla: (float(FIRST), float(FIRST)) for sla in classes}

    def saw(self, sla: str, prompt_tokens: int, output_tokens: int) -> None:
        """A request came.   prompt_tokens: of its prompt, those that are to be computed"""
        prompt, output = self._tokens[sla]
        prompt = FADE * prompt + (1 - FADE) * prompt_tokens
        output = FADE * output + (1 - FADE) * output_tokens
        self._tokens[sla] = (prompt, output)

    def next_one(self, sla: str, now_ms: int) -> Wanted:
        """A request of a class that would come now."""
        prompt, output = self._tokens[sla]
        return Wanted("", sla, now_ms, max(1, round(prompt)), max(1, round(output)))
