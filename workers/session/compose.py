"""From a session's log and a request to the prompt: pure, and the same on every pool.

    log       the messages of the turns before, and the token ids as they were computed
    request   messages, a prompt or token ids

The prompt begins with the log, token by token, as far as the client's messages say what the log
says: what the model wrote is spliced in as the ids that it sampled, never tokenised again.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from workers.text.text_model import TextModel
from workers.wire import Request

if TYPE_CHECKING:
    from kv_tier.manifest import Manifest, Message


class ComposeError(ValueError):
    """There is no prompt; field, reason (a sentence that begins with it) and code as in Reject."""

    def __init__(self, field: str, reason: str, code: str = "bad_request") -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = f"{field}: {reason}"
        self.code = code


@dataclass(frozen=True, slots=True)
class Turn:
    """A prompt, and what it says.

    token_ids  the whole prompt
    messages   of the whole conversation up to the answer
    common     how many tokens at the beginning are the log's
    forked_at  position at which it leaves the log; None: all of the log is in it
    """

    token_ids: list[int]
    messages: "tuple[Message, ...]"
    common: int
    forked_at: int | None


def compose(request: Request, log: "Manifest | None", text: TextModel) -> Turn:
    """The prompt of a session's request. Raises ComposeError."""
    raise NotImplementedError


def turn_after(turn: Turn, output_ids: list[int], text: str) -> "tuple[Message, ...]":
    """The messages of the log once the answer is there; text: what was shown of it."""
    raise NotImplementedError
