"""Answers of /v1/completions, whole or in chunks, made from the pieces of its turns.

With echo each choice begins with the text of its prompt.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from ingest.openai.choices import Choice, head_of, usage_of, with_lockstep
from ingest.openai.delivery import Delivery
from ingest.shapes import Json
from ingest.turn import Answer, EndPiece, Pairs, Piece, TextPiece
from workers.text.text_model import TextModel

KIND: Final = "text_completion"


class Completion:
    """Shapes one answer of `choices`."""

    def __init__(self, choices: Sequence[Choice], text: TextModel, how: Delivery) -> None:
        self.choices, self.text, self.echo = choices, text, how.echo
        self.shown = [0] * len(choices)  # characters before the next token, for text_offset
        self.head = head_of(choices[0].turn.request, text, "cmpl", KIND, how)

    def whole(self, answers: Sequence[Answer]) -> Json:
        """The answer as one object."""
        listed = []
        for choice, answer in zip(self.choices, answers, strict=True):
            assert answer.end is not None, choice.turn.request.id
            said = self._choice(choice, self._echoed(choice) + answer.text)
            said["logprobs"] = self.logprobs(choice, answer.logprobs, answer.offsets)
            said["finish_reason"] = answer.end.finish_reason
            listed.append(said)
        ends = [answer.end for answer in answers if answer.end is not None]
        whole: Json = {**self.head, "choices": listed, "usage": usage_of(self.choices, ends)}
        return with_lockstep(whole, self.choices, ends)

    def begin(self, choice: Choice) -> Iterator[Json]:
        """What comes before the first piece: the prompt, if it is wanted."""
        if self.echo:
            yield self.chunk(choice, self._echoed(choice))

    def piece(self, choice: Choice, piece: Piece) -> Iterator[Json]:
        if isinstance(piece, TextPiece):
            offsets = [self.shown[choice.index]] * len(piece.logprobs)
            self.shown[choice.index] += len(piece.text)
            chunk = self.chunk(choice, piece.text)
            if piece.logprobs:
                chunk["choices"][0]["logprobs"] = self.logprobs(choice, piece.logprobs, offsets)
            yield chunk
        elif isinstance(piece, EndPiece):
            last = self.chunk(choice, "")
            last["choices"][0]["finish_reason"] = piece.finish_reason
            yield with_lockstep(last, [choice], [piece])

    def chunk(self, choice: Choice, text: str) -> Json:
        return {**self.head, "choices": [self._choice(choice, text)]}

    def _choice(self, choice: Choice, text: str) -> Json:
        return {"index": choice.index, "text": text, "logprobs": None, "finish_reason": None}

    def _echoed(self, choice: Choice) -> str:
        if not self.echo:
            return ""
        ids = choice.turn.request.token_ids
        return b"".join(map(self.text.token_bytes, ids)).decode(errors="replace")

    def logprobs(
        self, choice: Choice, tokens: Sequence[Pairs], offsets: Sequence[int]
    ) -> Json | None:
        """OpenAI's older form: four lists of equal length; None when not asked for."""
        wanted = choice.turn.request.params.logprobs
        if wanted is None:
            return None
        return {
            "tokens": [self._name(pairs[0][0]) for pairs in tokens],
            "token_logprobs": [pairs[0][1] for pairs in tokens],
            "top_logprobs": [
                {self._name(token_id): value for token_id, value in pairs[: 1 + wanted]}
                for pairs in tokens
            ],
            "text_offset": list(offsets),
        }

    def _name(self, token_id: int) -> str:
        return self.text.token_bytes(token_id).decode(errors="replace")
