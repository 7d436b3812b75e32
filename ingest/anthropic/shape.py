"""An answer as one message, and the events of which its stream consists, from the same pieces.

    message_start                                             the message, empty
    content_block_start, content_block_delta ... content_block_stop      for each block
    message_delta                                             why it ended, and usage
    message_stop

A name that this API has not stands beside usage: timings and lockstep, as in the other APIs.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from pydantic_core import from_json

from ingest.shapes import Json, lockstep_object
from ingest.turn import EndPiece, Piece, ReasoningPiece, TextPiece, ToolCallPiece
from workers.text.text_model import TextModel
from workers.timings import timings_of
from workers.wire import Request, TokenEvent

Event = tuple[str, Json]  # its type, and its fields
REASONS: Final = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
DELTAS: Final = {
    "text": ("text_delta", "text"),
    "thinking": ("thinking_delta", "thinking"),
    "tool_use": ("input_json_delta", "partial_json"),
}
EMPTY: Final[Mapping[str, Json]] = {
    "text": {"text": ""},
    "thinking": {"thinking": "", "signature": ""},
    "tool_use": {"input": {}},
}


class Output:
    """One message as its pieces come: begin(), piece() for each, and then `message` is whole."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.block: Json | None = None  # the one that grows, at the end of the content
        self.pieces: list[str] = []  # of its text
        self.blank = ""  # at the beginning, not told yet
        self.message: Json = {
            "id": f"msg_{request.own_id}",
            "type": "message",
            "role": "assistant",
            "model": request.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage_object(len(request.token_ids), 0, 0),
        }

    def begin(self) -> Iterator[Event]:
        yield "message_start", {"message": self.message}

    def piece(self, piece: Piece, stop_sequence: str | None = None) -> Iterator[Event]:
        """stop_sequence: with the last piece, the one that ended the answer."""
        if isinstance(piece, TextPiece):
            yield from self._grow("text", piece.text)
        elif isinstance(piece, ReasoningPiece):
            yield from self._grow("thinking", piece.text)
        elif isinstance(piece, ToolCallPiece):
            if piece.id:
                yield from self._close()
                yield from self._open("tool_use", id=piece.id, name=piece.name)
            yield from self._grow("tool_use", piece.arguments_delta)
        else:
            yield from self._end(piece, stop_sequence)

    def _open(self, kind: str, **more: str) -> Iterator[Event]:
        self.block = {"type": kind, **more, **EMPTY[kind]}
        self.pieces = []
        self.message["content"].append(self.block)
        yield "content_block_start", {"index": self._index, "content_block": dict(self.block)}

    def _grow(self, kind: str, text: str) -> Iterator[Event]:
        if self.block is None or self.block["type"] != kind:
            if kind == "text" and not text.strip():
                self.blank = "" if self.message["content"] else self.blank + text
                return  # empty lines before and between calls are no block
            yield from self._close()
            yield from self._open(kind)
            text = self.blank + text if kind == "text" else text
        if text:
            self.pieces.append(text)
            delta_kind, name = DELTAS[kind]
            delta = {"type": delta_kind, name: text}
            yield "content_block_delta", {"index": self._index, "delta": delta}

    def _close(self) -> Iterator[Event]:
        if self.block is None:
            return
        text, kind = "".join(self.pieces), self.block["type"]
        if kind == "tool_use":
            self.block["input"] = input_of(text)
        else:
            self.block[kind] = text
        yield "content_block_stop", {"index": self._index}
        self.block = None

    @property
    def _index(self) -> int:
        return len(self.message["content"]) - 1

    def _end(self, end: EndPiece, stop_sequence: str | None) -> Iterator[Event]:
        if not self.message["content"] and self.blank:
            yield from self._open("text")
            yield from self._grow("text", self.blank)
        yield from self._close()
        reason = "stop_sequence" if stop_sequence is not None else REASONS[end.finish_reason]
        usage = end.usage
        ended = {"stop_reason": reason, "stop_sequence": stop_sequence}
        counts = usage_object(usage.prompt_tokens, usage.cached_tokens, usage.output_tokens)
        own = {
            "timings": timings_of(end.end),
            "lockstep": lockstep_object(self.request, end.end),
        }
        self.message |= {**ended, "usage": counts, **own}
        yield "message_delta", {"delta": ended, "usage": counts, **own}
        yield "message_stop", {}


def usage_object(prompt: int, cached: int, output: int) -> Json:
    """Anthropic's usage: input_tokens are those of the prompt that were not cached."""
    return {
        "input_tokens": prompt - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": output,
    }


def input_of(arguments: str) -> Any:
    """A call's input as an object; of one that was cut, what is whole of it, as clients read it."""
    try:
        given = from_json(arguments or "{}", allow_partial=True)
    except ValueError:
        return {"arguments": arguments}
    return given if isinstance(given, dict) else {"arguments": given}


def stop_sequence_in(
    tokens: Sequence[TokenEvent], stops: Sequence[str], text: TextModel
) -> str | None:
    """Which of the stop strings ended an answer of these tokens; None: none of them did."""
    raw = b"".join(text.token_bytes(token.token_id) for token in tokens)
    whole = raw.decode(errors="replace")
    places = [(whole.find(stop), stop) for stop in stops if stop in whole]
    return min(places)[1] if places else None
