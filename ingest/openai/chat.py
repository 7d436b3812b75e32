"""Answers of /v1/chat/completions, whole or in chunks, made from the pieces of its turns.

    pieces    "Par"         "is"    call f   {"a":   1}      end
    chunks    role, "Par"   "is"    tool_calls ...           finish_reason + lockstep, then usage

Each choice is a turn of its own; its chunks carry its index.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from ingest.openai.choices import Choice, head_of, usage_of, with_lockstep
from ingest.openai.delivery import Delivery
from ingest.shapes import Json, named_token
from ingest.turn import (
    Answer,
    EndPiece,
    Pairs,
    Piece,
    ReasoningPiece,
    TextPiece,
    ToolCall,
    ToolCallPiece,
)
from workers.text.text_model import TextModel

KIND: Final = "chat.completion"


class Chat:
    """Shapes one answer of `choices`."""

    def __init__(self, choices: Sequence[Choice], text: TextModel, how: Delivery) -> None:
        self.choices, self.text = choices, text
        self.head = head_of(choices[0].turn.request, text, "chatcmpl", f"{KIND}.chunk", how)

    def whole(self, answers: Sequence[Answer]) -> Json:
        """The answer as one object."""
        listed = []
        for choice, answer in zip(self.choices, answers, strict=True):
            assert answer.end is not None, choice.turn.request.id
            said: Json = {
                "index": choice.index,
                "message": message_of(answer),
                "logprobs": self.logprobs(choice, answer.logprobs),
                "finish_reason": answer.end.finish_reason,
            }
            listed.append(said)
        ends = [answer.end for answer in answers if answer.end is not None]
        whole = {**self.head, "object": KIND, "choices": listed}
        whole["usage"] = usage_of(self.choices, ends)
        return with_lockstep(whole, self.choices, ends)

    def begin(self, choice: Choice) -> Iterator[Json]:
        """What comes before the first piece."""
        yield self.chunk(choice, {"role": "assistant", "content": ""})

    def piece(self, choice: Choice, piece: Piece) -> Iterator[Json]:
        if isinstance(piece, TextPiece):
            yield self.chunk(choice, {"content": piece.text}, piece.logprobs)
        elif isinstance(piece, ReasoningPiece):
            yield self.chunk(choice, {"reasoning_content": piece.text})
        elif isinstance(piece, ToolCallPiece):
            yield self.chunk(choice, {"tool_calls": [call_delta(piece)]})
        else:
            yield self._end(choice, piece)

    def chunk(self, choice: Choice, delta: Json, logprobs: Sequence[Pairs] = ()) -> Json:
        said: Json = {
            "index": choice.index,
            "delta": delta,
            "logprobs": self.logprobs(choice, logprobs) if logprobs else None,
            "finish_reason": None,
        }
        return {**self.head, "choices": [said]}

    def _end(self, choice: Choice, end: EndPiece) -> Json:
        last = self.chunk(choice, {})
        last["choices"][0]["finish_reason"] = end.finish_reason
        return with_lockstep(last, [choice], [end])

    def logprobs(self, choice: Choice, tokens: Sequence[Pairs]) -> Json | None:
        """OpenAI's logprobs; None when they were not asked for."""
        wanted = choice.turn.request.params.logprobs
        if wanted is None:
            return None
        return {"content": [self._logprob(pairs, wanted) for pairs in tokens], "refusal": None}

    def _logprob(self, pairs: Pairs, wanted: int) -> Json:
        top = [named_token(self.text, pair) for pair in pairs[1 : 1 + wanted]]
        return {**named_token(self.text, pairs[0]), "top_logprobs": top}


def message_of(answer: Answer) -> Json:
    """The assistant's message; content is null where there are only calls."""
    only_calls = answer.tool_calls and not answer.text.strip()
    content = None if only_calls else answer.text
    message: Json = {"role": "assistant", "content": content, "refusal": None}
    if answer.reasoning:
        message["reasoning_content"] = answer.reasoning
    if answer.tool_calls:
        message["tool_calls"] = [call_object(call) for call in answer.tool_calls]
    return message


def call_object(call: ToolCall) -> Json:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def call_delta(piece: ToolCallPiece) -> Json:
    """The first piece of a call names it; the others hold more of its arguments."""
    if not piece.id:
        return {"index": piece.index, "function": {"arguments": piece.arguments_delta}}
    function = {"name": piece.name, "arguments": piece.arguments_delta}
    return {"index": piece.index, "id": piece.id, "type": "function", "function": function}
