"""How a command ends: its exit codes, and the exception that carries one with a sentence.

0  done; the request finished        3    the store does not answer, or refuses
1  the request failed, or is unknown 4    the result is not there yet
2  wrong usage or configuration      130  interrupted
"""

from typing import Final

FAILED: Final = 1
USAGE: Final = 2
STORE_AWAY: Final = 3
NOT_YET: Final = 4
INTERRUPTED: Final = 130


class Failure(Exception):
    """A command that cannot do what it was asked; the sentence goes to stderr."""

    def __init__(self, sentence: str, exit_code: int = FAILED) -> None:
        super().__init__(sentence)
        self.exit_code = exit_code
