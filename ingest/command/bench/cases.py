"""What is measured on each side: the cases, their prompts, and how a side is asked.

A side is a process that loads its model once, reads one case a line from stdin and answers each
with one line, the seconds it took. Between its turns it sleeps, so that the other has the machine.
A decode case that is asked for again goes on where it was, a few tokens further into its context.
"""

import sys
from collections.abc import Callable
from typing import Any, Final, Literal

import msgspec

STEP_TOKENS: Final = 512  # of a prefill step, on both sides
FIRST_ID, NUM_IDS = 1000, 40_000  # ordinary tokens of the default model's vocabulary


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement.

    prefill  one prompt of `context` tokens, until it has its first token
    extend   the last STEP_TOKENS of a prompt of `context` tokens, those before them not timed
    decode   `steps` steps of one token for each session, behind `context` tokens not timed
    in_c     the same; the answer is the share of the time that is spent in the extension

    beside_peer  False: the peer is not asked, it would take minutes to get there
    """

    phase: Literal["prefill", "extend", "decode", "in_c"]
    sessions: int
    context: int
    steps: int = 1
    beside_peer: bool = True

    @property
    def num_tokens(self) -> int:
        """Tokens that the measured time was spent on."""
        if self.phase == "extend":
            return STEP_TOKENS
        return self.context if self.phase == "prefill" else self.sessions * self.steps


def prompt(session: int, num_tokens: int, vocab_size: int) -> list[int]:
    """Token ids without meaning, another list for each session."""
    state, ids = session + 1, []
    span = min(NUM_IDS, vocab_size // 2)
    first = min(FIRST_ID, vocab_size // 4)
    for _ in range(num_tokens):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        ids.append(first + (state >> 33) % span)
    return ids


def serve(measure: Callable[[Case], float], about: dict[str, Any]) -> None:
    """The loop of a side: says what it is, then answers cases until its stdin ends."""
    print(msgspec.json.encode(about).decode(), flush=True)
    for line in sys.stdin:
        print(measure(msgspec.json.decode(line, type=Case)), flush=True)
