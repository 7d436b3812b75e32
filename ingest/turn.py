"""One answer as typed pieces: what every API of the front door is shaped from.

    turn = await begin(desk, fields, key=key_of(request), door="chat")   accepted, or ApiError
    async for pieces in turn.pieces():                  what came together; [] : only time passed
        TextPiece | ReasoningPiece | ToolCallPiece ...  and at last one EndPiece

A synchronous request is cancelled when its client goes before the answer is complete: call
turn.gone(), or let EventStream do it.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final

import xxhash

from ingest.access.keys import Key
from ingest.desk import Desk, Visit
from ingest.errors import ApiError, status_of
from ingest.tokens import Stopping
from router.answer_form import choice_of, tools_of
from router.prompt import variables_of
from workers.text.answer import AnswerReader, Said
from workers.text.text_model import TextModel
from workers.text.thoughts import Thought
from workers.text.tool_calls.bodies import Call
from workers.text.tool_calls.reading import Text
from workers.wire import EndEvent, Request, TokenEvent, Usage

RETRY_STOPPING_S: Final = 2  # the next process is there by then

Pairs = Sequence[tuple[int, float]]  # (token id, log probability), the chosen one first


@dataclass(frozen=True, slots=True)
class TextPiece:
    """Text of the answer. logprobs: of the tokens that came with it, if they were asked for."""

    text: str
    logprobs: tuple[Pairs, ...] = ()


@dataclass(frozen=True, slots=True)
class ReasoningPiece:
    """Text of the thoughts before the answer, without the marks around them."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallPiece:
    """A call begins (id and name), or a piece of its arguments' JSON has come.

    index  of the call among those of the answer, from 0
    id     "" and name "" in all pieces of a call but its first
    """

    index: int
    id: str
    name: str
    arguments_delta: str


@dataclass(frozen=True, slots=True)
class EndPiece:
    """The answer is complete.

    finish_reason     "stop", "length" or "tool_calls"
    end               all that is known: digest, times, class, session
    reasoning_tokens  of the output tokens, those of thoughts
    """

    finish_reason: str
    usage: Usage
    end: EndEvent
    reasoning_tokens: int = 0


Piece = TextPiece | ReasoningPiece | ToolCallPiece | EndPiece


@dataclass(slots=True)
class ToolCall:
    """A call of a tool, complete: arguments is JSON as the model wrote it."""

    id: str
    name: str
    arguments: str


@dataclass(slots=True)
class Answer:
    """All pieces of an answer, joined.

    offsets  of each of logprobs: characters of the text before its token
    """

    text: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)
    logprobs: list[Pairs] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    end: EndPiece | None = None

    def add(self, piece: Piece) -> None:
        if isinstance(piece, TextPiece):
            self.offsets += [len(self.text)] * len(piece.logprobs)
            self.text += piece.text
            self.logprobs += piece.logprobs
        elif isinstance(piece, ReasoningPiece):
            self.reasoning += piece.text
        elif isinstance(piece, EndPiece):
            self.end = piece
        else:
            if piece.index == len(self.tool_calls):
                self.tool_calls.append(ToolCall(piece.id, piece.name, ""))
            self.tool_calls[piece.index].arguments += piece.arguments_delta


class Turn:
    """A request that was accepted, and its answer as it comes."""

    def __init__(self, visit: Visit, text: TextModel, reader: AnswerReader) -> None:
        self.request: Request = visit.request
        self.text = text
        self.gone = visit.gone  # to be called when the client left before the end
        self._visit, self._reader = visit, reader
        self._reasoning_tokens = 0

    async def left(self) -> None:
        """The client has gone, and the request goes on without it."""
        self._visit.leave()

    async def pieces(self) -> AsyncIterator[list[Piece]]:
        """What came since the last, in order; the last list ends with the EndPiece.

        An empty list: nothing came for a while; say something to the client. Raises ApiError when
        the request ends without an answer, or when this process ends first.
        """
        try:
            async for entries in self._visit.events():
                came: list[Piece] = []
                for _, event in entries:
                    came += self._token(event) if isinstance(event, TokenEvent) else []
                    if isinstance(event, EndEvent):
                        self._visit.ended(event)
                        if event.status == "finished":
                            came += self._end(event)
                        else:
                            yield came
                            raise failure(event)
                yield came
        except Stopping:
            self._visit.leave()
            raise stopping(self.request.own_id) from None

    def _token(self, event: TokenEvent) -> list[Piece]:
        """Its log probabilities go with the first text that it gives, if it gives any."""
        self._reasoning_tokens += self._reader.is_thinking
        pieces = [self._piece(said) for said in self._reader.push(event.text)]
        if event.logprobs is None:
            return pieces
        for index, piece in enumerate(pieces):
            if isinstance(piece, TextPiece):
                pieces[index] = TextPiece(piece.text, (event.logprobs,))
                return pieces
        return [*pieces, TextPiece("", (event.logprobs,))]

    def _end(self, event: EndEvent) -> list[Piece]:
        said = chain(self._reader.push(event.text), self._reader.flush())
        pieces = [self._piece(item) for item in said]
        usage = event.usage or Usage(prompt_tokens=0, output_tokens=0)
        reason = event.finish_reason or "stop"
        if reason == "stop" and self._reader.num_calls:
            reason = "tool_calls"
        end = EndPiece(reason, usage, event, self._reasoning_tokens)
        return [*pieces, end]

    def _piece(self, said: Said) -> Piece:
        index = self._reader.num_calls - 1
        if isinstance(said, Text):
            return TextPiece(said.text)
        if isinstance(said, Thought):
            return ReasoningPiece(said.text)
        if isinstance(said, Call):
            return ToolCallPiece(index, call_id(self.request.id, index), said.name, "")
        return ToolCallPiece(index, "", "", said.delta)


async def begin(desk: Desk, fields: Mapping[str, Any], *, key: Key, door: str) -> Turn:
    """Accepts a request of these fields (router/schema.py). Raises ApiError.

    key   who asks: gate.key_of
    door  the API's name, for the metrics
    """
    receipt = await desk.accept(fields, key=key, door=door)
    text = desk.text_model()
    return Turn(desk.visitors.enter(receipt), text, reader_of(fields, text))


def reader_of(fields: Mapping[str, Any], text: TextModel) -> AnswerReader:
    """Reads the answer to a request of these fields, which was admitted.

    What follows a prompt is its text alone: only an answer to messages has thoughts and calls.
    """
    given = {name: value for name, value in fields.items() if value is not None}
    if "messages" not in given:
        return AnswerReader("", text.tool_form, ())
    calls, tools = choice_of(given, tools_of(given.get("tools", [])))
    readable = tools if calls != "none" else ()
    return AnswerReader(text.thoughts(variables_of(given, text)), text.tool_form, readable)


def call_id(request_id: str, index: int) -> str:
    """The id of a call: the same whenever the answer is read."""
    return f"call_{xxhash.xxh3_64_hexdigest(f'{request_id} {index}'.encode())}"


def failure(end: EndEvent) -> ApiError:
    """Why there is no answer."""
    message = end.error or f"the request was {end.status}"
    return ApiError(status_of(end.code or end.status), message, code=end.code or end.status)


def stopping(request_id: str) -> ApiError:
    """The node ends; the request does not."""
    message = f"the node is being restarted; ask again with id {request_id!r}"
    return ApiError(503, message, code="stopping", retry_after_s=RETRY_STOPPING_S)
