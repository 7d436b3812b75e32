"""What the doctor finds: one thing that was looked at, and what to do about it."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """todo says what to do, and is empty when all is well.

    part  of the node, for people
    name  what is wrong, for scripts: the same in every version; "ok" when all is well
    """

    part: str
    what: str
    todo: str = ""
    name: str = "ok"

    @property
    def is_good(self) -> bool:
        return not self.todo


def wrong(name: str, part: str, what: str, todo: str) -> Finding:
    """Something to be done."""
    return Finding(part, what, todo, name)


def of_sentences(name: str, part: str, sentences: Iterable[str], good: str) -> list[Finding]:
    """preflight's sentences say both what is wrong and, after the colon, what to do."""
    found = [wrong(name, part, *sentence.split(": ", 1)) for sentence in sentences]
    return found or [Finding(part, good)]
