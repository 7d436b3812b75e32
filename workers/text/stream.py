"""Token ids of one sequence in, text that may be shown out.

    bytes of tokens ──► whole characters ──► held ──► shown
                        (UTF-8 decoder)      the longest end that may become a stop string

Promises:
  1. what is shown is complete UTF-8, and never a part of a stop string that comes to be
  2. all that push and flush gave, joined, is the decoded whole, cut where the first completed stop
     string begins: the one that ends first, the longest among those that end together
  3. the same ids give the same texts, push by push: what a worker left is replayed by the next
"""

from codecs import getincrementaldecoder
from typing import Final

from workers.text.text_model import TextModel

Decoder: Final = getincrementaldecoder("utf-8")


class TextStream:
    """stopped becomes True when a stop string completes; nothing is shown after it."""

    def __init__(self, text: TextModel, stop: tuple[str, ...]) -> None:
        assert all(stop), "an empty stop string would stop everything"
        self.stopped = False
        self._text = text
        self._stop = stop
        self._decoder = Decoder("replace")
        self._held = ""

    def push(self, token_id: int) -> str:
        """The text that may be shown now that this token has come."""
        return self._show(self._decoder.decode(self._text.token_bytes(token_id)), is_last=False)

    def flush(self) -> str:
        """What was held back, at the end; a character cut short becomes U+FFFD."""
        return self._show(self._decoder.decode(b"", final=True), is_last=True)

    def _show(self, new: str, is_last: bool) -> str:
        if self.stopped:
            return ""
        text = self._held + new
        found = [(begin + len(s), begin) for s in self._stop if (begin := text.find(s)) >= 0]
        if found:
            self.stopped = True
            shown = text[: min(found)[1]]
            self._held = ""
            return shown
        shown_length = len(text) if is_last else len(text) - self._num_held(text)
        self._held = text[shown_length:]
        return text[:shown_length]

    def _num_held(self, text: str) -> int:
        """Length of the longest end of text that begins a stop string."""
        longest = min(len(text), max(map(len, self._stop), default=1) - 1)
        for length in range(longest, 0, -1):
            if any(s.startswith(text[-length:]) for s in self._stop):
                return length
        return 0
