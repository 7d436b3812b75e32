"""The answers of OpenAI's two APIs, whole or in chunks, made from a request's events.

    events    token "Par"   token "is"    end (stop)
    chunks    role, "Par"   "is"          finish_reason + lockstep, usage if asked for

Text that is held back (half a character, the beginning of a stop string) gives no chunk until it
may be shown. What OpenAI has no field for stands under `lockstep`: id, class, digest, times, and of
a session's request its session and where it left the session's log.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from workers.text.text_model import TextModel
from workers.timings import timings_of
from workers.wire import EndEvent, Request, TokenEvent, Usage

Json = dict[str, Any]


def usage_object(usage: Usage | None) -> Json:
    """OpenAI's usage."""
    prompt = usage.prompt_tokens if usage else 0
    output = usage.output_tokens if usage else 0
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens if usage else 0},
    }


def lockstep_object(request: Request, end: EndEvent) -> Json:
    """What only this node says of an answer."""
    said: Json = {
        "id": request.id,
        "sla": end.sla or request.sla,
        "digest": end.digest,
        "ttft_ms": end.ttft_ms,
        "tpot_ms": end.tpot_ms,
        "queue_ms": end.queue_ms,
    }
    if request.session_id is not None:
        said |= {
            "session_id": request.session_id,
            "forked_at": end.forked_at,
            "cached_tokens": end.usage.cached_tokens if end.usage else 0,
        }
    if end.error:  # there is an answer, but the session does not have it
        said["error"] = {"message": end.error, "code": end.code}
    return said


class Chat:
    """Answers of /v1/chat/completions."""

    def __init__(self, request: Request, text: TextModel) -> None:
        self.request = request
        self.text = text
        self.head = {
            "id": f"chatcmpl-{request.id}",
            "object": "chat.completion.chunk",
            "created": request.arrival_ms // 1000,
            "model": request.model,
            "system_fingerprint": f"fp_{text.weights_digest[:12]}",
        }

    def whole(self, tokens: Sequence[TokenEvent], end: EndEvent) -> Json:
        """The answer as one object."""
        content = "".join(token.text for token in tokens) + end.text
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": content, "refusal": None},
            "logprobs": self.logprobs(tokens),
            "finish_reason": end.finish_reason,
        }
        return {
            **self.head,
            "object": "chat.completion",
            "choices": [choice],
            "usage": usage_object(end.usage),
            "timings": timings_of(end),
            "lockstep": lockstep_object(self.request, end),
        }

    def begin(self) -> Iterator[Json]:
        """What comes before the first token's chunk."""
        yield self.chunk({"role": "assistant", "content": ""})

    def token(self, token: TokenEvent) -> Iterator[Json]:
        if token.text or token.logprobs is not None:
            yield self.chunk({"content": token.text}, logprobs=self.logprobs([token]))

    def end(self, end: EndEvent) -> Iterator[Json]:
        if end.text:
            yield self.chunk({"content": end.text})
        last = self.chunk({}, finish_reason=end.finish_reason)
        yield {**last, "timings": timings_of(end), "lockstep": lockstep_object(self.request, end)}

    def usage(self, end: EndEvent) -> Json:
        """The chunk that stream_options.include_usage asks for."""
        return {**self.head, "choices": [], "usage": usage_object(end.usage)}

    def chunk(
        self, delta: Json, logprobs: Json | None = None, finish_reason: str | None = None
    ) -> Json:
        choice = {
            "index": 0,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": finish_reason,
        }
        return {**self.head, "choices": [choice]}

    def logprobs(self, tokens: Sequence[TokenEvent]) -> Json | None:
        """OpenAI's logprobs; None when they were not asked for."""
        if self.request.params.logprobs is None:
            return None
        content = [self._logprob(token.logprobs) for token in tokens if token.logprobs]
        return {"content": content, "refusal": None}

    def _logprob(self, pairs: Sequence[tuple[int, float]]) -> Json:
        wanted = self.request.params.logprobs or 0
        chosen, others = pairs[0], pairs[1 : 1 + wanted]
        return {**self._named(chosen), "top_logprobs": [self._named(pair) for pair in others]}

    def _named(self, pair: tuple[int, float]) -> Json:
        raw = self.text.token_bytes(pair[0])
        return {"token": raw.decode(errors="replace"), "logprob": pair[1], "bytes": list(raw)}


class Completion:
    """Answers of /v1/completions."""

    def __init__(self, request: Request, text: TextModel) -> None:
        self.request = request
        self.text = text
        self.shown = 0  # characters before the next token, for text_offset
        self.head = {
            "id": f"cmpl-{request.id}",
            "object": "text_completion",
            "created": request.arrival_ms // 1000,
            "model": request.model,
            "system_fingerprint": f"fp_{text.weights_digest[:12]}",
        }

    def whole(self, tokens: Sequence[TokenEvent], end: EndEvent) -> Json:
        """The answer as one object."""
        text = "".join(token.text for token in tokens) + end.text
        answer = self.chunk(text, self.logprobs(tokens), end.finish_reason)
        answer["usage"] = usage_object(end.usage)
        answer["timings"] = timings_of(end)
        answer["lockstep"] = lockstep_object(self.request, end)
        return answer

    def begin(self) -> Iterator[Json]:
        """What comes before the first token's chunk: nothing."""
        yield from ()

    def token(self, token: TokenEvent) -> Iterator[Json]:
        if token.text or token.logprobs is not None:
            yield self.chunk(token.text, self.logprobs([token]))

    def end(self, end: EndEvent) -> Iterator[Json]:
        last = self.chunk(end.text, finish_reason=end.finish_reason)
        yield {**last, "timings": timings_of(end), "lockstep": lockstep_object(self.request, end)}

    def usage(self, end: EndEvent) -> Json:
        """The chunk that stream_options.include_usage asks for."""
        return {**self.head, "choices": [], "usage": usage_object(end.usage)}

    def chunk(
        self, text: str, logprobs: Json | None = None, finish_reason: str | None = None
    ) -> Json:
        choice = {"index": 0, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}
        return {**self.head, "choices": [choice]}

    def logprobs(self, tokens: Sequence[TokenEvent]) -> Json | None:
        """OpenAI's older form: four lists of equal length; None when not asked for."""
        wanted = self.request.params.logprobs
        if wanted is None:
            return None
        result: Json = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for token in tokens:
            pairs = token.logprobs
            assert pairs, f"token {token.index} of {self.request.id} came without logprobs"
            result["tokens"].append(self._name(pairs[0][0]))
            result["token_logprobs"].append(pairs[0][1])
            top = {self._name(token_id): value for token_id, value in pairs[: 1 + wanted]}
            result["top_logprobs"].append(top)
            result["text_offset"].append(self.shown)
            self.shown += len(token.text)
        return result

    def _name(self, token_id: int) -> str:
        return self.text.token_bytes(token_id).decode(errors="replace")


SHAPES: Mapping[str, type[Chat] | type[Completion]] = {"chat": Chat, "completions": Completion}
