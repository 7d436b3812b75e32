"""From the text of an answer, as it comes, to thoughts, text and calls of tools."""

from collections.abc import Iterator, Sequence

from workers.text.thoughts import Thought, ThoughtReader
from workers.text.tool_calls.bodies import Arguments, Call
from workers.text.tool_calls.forms import Tool
from workers.text.tool_calls.reading import CallReader, Text

Said = Thought | Text | Call | Arguments


class AnswerReader:
    """Reads one answer: thoughts come first, calls are nothing but text while there are no tools.

    num_calls  that have begun
    """

    def __init__(self, thoughts: str, form: str, tools: Sequence[Tool]) -> None:
        """thoughts, form: TextModel.thoughts and tool_form."""
        self._thoughts = ThoughtReader(thoughts)
        self._calls = CallReader(form, tools) if tools else None
        self.num_calls = 0

    @property
    def is_thinking(self) -> bool:
        return self._thoughts.is_thinking

    def push(self, text: str) -> Iterator[Said]:
        for item in self._thoughts.push(text):
            yield from self._said(item)

    def flush(self) -> Iterator[Said]:
        """What was held back, at the end."""
        for item in self._thoughts.flush():
            yield from self._said(item)
        if self._calls is not None:
            yield from self._calls.flush()

    def _said(self, item: Thought | str) -> Iterator[Said]:
        if isinstance(item, Thought):
            yield item
        elif self._calls is None:
            yield Text(item)
        else:
            for said in self._calls.push(item):
                self.num_calls += isinstance(said, Call)
                yield said
