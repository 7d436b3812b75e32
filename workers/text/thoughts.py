"""The thoughts before an answer, told from it: what stands between <think> and </think>.

The first mark is written by the template or by the model (TextModel.thoughts); the space around
both is neither thought nor answer.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

BEGIN: Final = "<think>"
END: Final = "</think>"


@dataclass(frozen=True, slots=True)
class Thought:
    text: str


class ThoughtReader:
    """Reads one answer. written_by: who writes the first mark; "": there are no thoughts.

    is_thinking  what comes now is thought
    """

    def __init__(self, written_by: str) -> None:
        self.is_thinking = written_by == "template"
        self._may_begin = written_by == "model"
        self._skips = self.is_thinking  # space: nothing has been said since the last mark
        self._held = ""

    def push(self, text: str) -> Iterator[Thought | str]:
        """Thoughts, and as plain texts what belongs to the answer."""
        self._held += text
        if self._may_begin:
            self._begin()
        if self._may_begin:
            return
        if self.is_thinking:
            yield from self._thought()
        if not self.is_thinking:
            said = self._taken(self._held)
            if said:
                yield said

    def flush(self) -> Iterator[Thought | str]:
        """What was held back, at the end."""
        held, self._held = self._held, ""
        if self.is_thinking and held.strip():
            yield Thought(held.rstrip())
        elif not self.is_thinking and held and not self._skips:
            yield held

    def _begin(self) -> None:
        start = self._held.lstrip()
        if start.startswith(BEGIN):
            self._may_begin, self.is_thinking, self._skips = False, True, True
            self._held = start[len(BEGIN) :]
        elif not BEGIN.startswith(start):
            self._may_begin = False

    def _thought(self) -> Iterator[Thought | str]:
        before, mark, after = self._held.partition(END)
        if mark:
            self._held = before
            said = self._taken(before).rstrip()
            self.is_thinking, self._skips, self._held = False, True, after
        else:
            shown = len(before) - _num_held(before)
            held = before[shown:]
            said = self._taken(before[:shown])
            self._held = held
            # space may be the last before the mark
            kept = said.rstrip()
            self._held, said = said[len(kept) :] + self._held, kept
        if said:
            yield Thought(said)

    def _taken(self, text: str) -> str:
        """It is taken from what is held; space behind a mark is left out."""
        self._held = ""
        if self._skips:
            text = text.lstrip()
            self._skips = not text
        return text


def _num_held(text: str) -> int:
    """Length of the longest end of text that begins the last mark."""
    longest = min(len(text), len(END) - 1)
    return next((n for n in range(longest, 0, -1) if END.startswith(text[-n:])), 0)
