"""A response as one object, and the events of which its stream consists, from the same pieces.

    created, in_progress                                      the response, empty
    output_item.added, content_part.added, output_text.delta ... done, content_part.done,
    output_item.done                                          a message
    output_item.added, function_call_arguments.delta ... done, output_item.done
    output_item.added, reasoning_text.delta ... done, output_item.done
    completed | incomplete | failed                           the response, whole

Ids of items follow from the response's, so that a stream that is told again is the same.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from ingest.errors import ApiError
from ingest.shapes import Json, lockstep_object, named_token
from ingest.turn import EndPiece, Pairs, Piece, ReasoningPiece, TextPiece, ToolCallPiece
from workers.text.text_model import TextModel
from workers.timings import timings_of
from workers.wire import Request

Event = tuple[str, Json]  # its type without "response.", and its fields
ECHOED: Final[Mapping[str, Any]] = {
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "background": False,
    "store": True,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_p": 1.0,
    "top_logprobs": 0,
    "truncation": "disabled",
    "reasoning": {"effort": None, "summary": None},
    "user": None,
}


def head_of(request: Request, own_id: str, body: Mapping[str, Any]) -> Json:
    """The response before anything of it is there."""
    echoed = {n: default if body.get(n) is None else body[n] for n, default in ECHOED.items()}
    return {
        "id": own_id,
        "object": "response",
        "created_at": request.arrival_ms // 1000,
        "model": request.model,
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "output": [],
        "usage": None,
        **echoed,
    }


class Output:
    """One response as its pieces come: begin(), piece() for each, and then `response` is whole."""

    def __init__(self, head: Json, request: Request, text: TextModel) -> None:
        self.response = head
        self.request, self.text = request, text
        self.item: Json | None = None  # the one that grows, at the end of the output
        self.pieces: list[str] = []  # of its text
        self.logprobs: list[Json] = []
        self.blank = ""  # at the beginning, not told yet
        self.held: list[Json] = []  # log probabilities of what is not told yet

    def begin(self) -> Iterator[Event]:
        yield "created", {"response": self.response}
        yield "in_progress", {"response": self.response}

    def piece(self, piece: Piece) -> Iterator[Event]:
        if isinstance(piece, TextPiece):
            yield from self._grow("message", piece.text, self._named(piece.logprobs))
        elif isinstance(piece, ReasoningPiece):
            yield from self._grow("reasoning", piece.text)
        elif isinstance(piece, ToolCallPiece):
            if piece.id:
                yield from self._close()
                yield from self._open("function_call", call_id=piece.id, name=piece.name)
            yield from self._grow("function_call", piece.arguments_delta)
        else:
            yield from self._end(piece)

    def failed(self, error: ApiError) -> Iterator[Event]:
        """It ended without an answer: what there is of it stays."""
        self.item = None
        was_cancelled = error.code == "cancelled"
        self.response["status"] = "cancelled" if was_cancelled else "failed"
        told = {"code": error.code or "server_error", "message": error.message}
        self.response["error"] = None if was_cancelled else told
        yield "failed", {"response": self.response}

    # --- items ---

    def _open(self, kind: str, **more: str) -> Iterator[Event]:
        output = self.response["output"]
        name = f"{PREFIX[kind]}_{self.response['id'].removeprefix('resp_')}_{len(output)}"
        self.item = {"id": name, "type": kind, "status": "in_progress", **more, **EMPTY[kind]}
        self.pieces, self.logprobs = [], []
        output.append(self.item)
        yield "output_item.added", {**self._place(False), "item": dict(self.item)}
        if kind == "message":
            yield "content_part.added", {**self._place(), "part": text_part("", [])}

    def _grow(self, kind: str, text: str, logprobs: Sequence[Json] = ()) -> Iterator[Event]:
        if self.item is None or self.item["type"] != kind:
            if kind == "message" and not text.strip():
                self._hold(text, logprobs)
                return
            yield from self._close()
            yield from self._open(kind)
            if kind == "message":
                text, logprobs = self.blank + text, [*self.held, *logprobs]
        self.pieces.append(text)
        self.logprobs += logprobs
        delta: Json = {**self._place(kind != "function_call"), "delta": text}
        if kind == "message":
            delta["logprobs"] = list(logprobs)
        yield f"{DELTAS[kind]}.delta", delta

    def _hold(self, text: str, logprobs: Sequence[Json]) -> None:
        """Empty lines, and the tokens of marks: before a message they are its, else nobody's."""
        if self.response["output"]:
            self.blank, self.held = "", []
        else:
            self.blank += text
            self.held += logprobs

    def _close(self, status: str = "completed") -> Iterator[Event]:
        item = self.item
        if item is None:
            return
        text = "".join(self.pieces)
        item["status"] = status
        if item["type"] == "message":
            part = text_part(text, self.logprobs)
            item["content"] = [part]
            yield "output_text.done", {**self._place(), "text": text, "logprobs": self.logprobs}
            yield "content_part.done", {**self._place(), "part": part}
        elif item["type"] == "reasoning":
            item["content"] = [{"type": "reasoning_text", "text": text}]
            yield "reasoning_text.done", {**self._place(), "text": text}
        else:
            item["arguments"] = text
            done = {**self._place(False), "name": item["name"], "arguments": text}
            yield "function_call_arguments.done", done
        yield "output_item.done", {**self._place(False), "item": item}
        self.item = None

    def _place(self, is_content: bool = True) -> Json:
        """Where in the response; of the item itself, or of its one part."""
        assert self.item is not None
        place: Json = {"output_index": len(self.response["output"]) - 1}
        if is_content:
            place["content_index"] = 0
        return {"item_id": self.item["id"], **place}

    def _end(self, end: EndPiece) -> Iterator[Event]:
        if not self.response["output"]:
            yield from self._open("message")
            if self.blank or self.held:
                yield from self._grow("message", self.blank, self.held)
        is_cut = end.finish_reason == "length"
        status = "incomplete" if is_cut else "completed"
        yield from self._close(status)
        details = {"reason": "max_output_tokens"} if is_cut else None
        self.response |= {
            "status": status,
            "incomplete_details": details,
            "usage": usage_object(end),
            "timings": timings_of(end.end),
            "lockstep": lockstep_object(self.request, end.end),
        }
        yield status, {"response": self.response}

    def _named(self, logprobs: Sequence[Pairs]) -> list[Json]:
        wanted = self.request.params.logprobs or 0
        named = [[named_token(self.text, pair) for pair in pairs] for pairs in logprobs]
        return [{**chosen, "top_logprobs": top[:wanted]} for chosen, *top in named]


PREFIX: Final = {"message": "msg", "function_call": "fc", "reasoning": "rs"}
DELTAS: Final = {
    "message": "output_text",
    "function_call": "function_call_arguments",
    "reasoning": "reasoning_text",
}
EMPTY: Final[Mapping[str, Json]] = {
    "message": {"role": "assistant", "content": []},
    "function_call": {"arguments": ""},
    "reasoning": {"summary": [], "content": []},
}


def text_part(text: str, logprobs: Sequence[Json]) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(logprobs)}


def usage_object(end: EndPiece) -> Json:
    usage = end.usage
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": end.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.output_tokens,
    }
