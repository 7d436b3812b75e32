"""From a session's log and a request to the prompt: pure, and the same on every pool.

    log       [ user | answer 1 | user | answer 2 ]       token ids as they were computed
    history     user   answer 1   user   answer 2   user   what the client's messages say
    prompt    [ log ............................. | rendered ]

What the model wrote is never tokenised again: the prompt begins with the log, as far as the
client's messages say what the log says, and only what follows the last answer in common is
rendered. In a history the template has a say, too: where it leaves out a part of an answer, such as
its thoughts, the part in common ends. What is appended continues the log as it is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from kv_tier.chain import common_length
from kv_tier.manifest import Manifest, Message
from workers.text.template import TemplateError
from workers.text.text_model import TextModel
from workers.text.tool_calls import generic
from workers.wire import Request

RAW: Final = "prompt"  # the role of tokens that came as a prompt, not as messages: content is ""
Composed = tuple[list[int], tuple[Message, ...]]


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
    messages: tuple[Message, ...]
    common: int
    forked_at: int | None


def compose(request: Request, log: Manifest | None, text: TextModel) -> Turn:
    """The prompt of a session's request; of one that is composed already, the same again.

    Raises ComposeError.
    """
    known = list(log.token_ids) if log is not None else []
    try:
        token_ids, messages = _composed(request, log if known else None, text)
    except TemplateError as error:
        reason = f"the model's chat template refuses them: {error}"
        raise ComposeError("messages", reason) from error
    if request.composed:
        token_ids = list(request.token_ids)
    _refuse_size(request, len(token_ids), text)
    common = common_length(known, token_ids)
    return Turn(
        token_ids=token_ids,
        messages=tuple(m if m.end <= common else replace(m, begin=0, end=0) for m in messages),
        common=common,
        forked_at=common if common < len(known) else None,
    )


def turn_before(request: Request, log: Manifest) -> Turn | None:
    """The prompt of the log's last turn, when this very request has said it; None: another did.

    So it is when the store has lost what was composed for the request, and the files have not.
    """
    if log.last_request != request.id or not log.messages or not _is_generated(log.messages[-1]):
        return None
    *before, answer = log.messages
    if request.messages and not (before and _says(before[-1], request.messages[-1])):
        return None
    return Turn(list(log.token_ids[: answer.begin]), tuple(before), answer.begin, None)


def turn_after(turn: Turn, output_ids: Sequence[int], text: str) -> tuple[Message, ...]:
    """The messages once the answer is there.

    output_ids  what was generated, without the end token
    text        what was shown of it
    """
    begin = len(turn.token_ids)
    answer = Message("assistant", text, begin=begin, end=begin + len(output_ids))
    return (*turn.messages, answer)


def with_prompt(request: Request, turn: Turn, most_tokens: int) -> Request:
    """The composed request. max_tokens becomes what a pool that holds most_tokens has room for.

    Raises ComposeError when not one token has.
    """
    room = most_tokens - len(turn.token_ids)
    if room < 1:
        reason = f"needs memory for {len(turn.token_ids) + 1} tokens, this pool has {most_tokens}"
        raise ComposeError(_field(request), reason, "too_large")
    params = request.params
    if params.max_tokens > room:
        params = msgspec.structs.replace(params, max_tokens=room)
    return msgspec.structs.replace(
        request, token_ids=tuple(turn.token_ids), params=params, composed=True
    )


def is_history(request: Request, log: Manifest) -> bool:
    """Whether the messages are the whole conversation, or what comes after the log."""
    if request.session_mode:
        return request.session_mode == "history"
    first = log.messages[0] if log.messages else None
    begins = first is not None and _says(first, request.messages[0])
    return begins or any(m["role"] in ("system", "assistant") for m in request.messages)


def _composed(request: Request, log: Manifest | None, text: TextModel) -> Composed:
    if not request.messages:
        return _raw(request, log, text)
    if log is None:
        return _whole(request, text)
    return (_history if is_history(request, log) else _appended)(request, log, text)


def _raw(request: Request, log: Manifest | None, text: TextModel) -> Composed:
    """Token ids go behind the log, or are the whole: at first, in a history, with the log in it."""
    ids, said = list(request.token_ids), Message(RAW, "")
    if log is None:
        return ids, (said,)
    known = list(log.token_ids)
    appends = request.session_mode == "append" and not request.composed
    if ids[: len(known)] == known and not appends:
        return ids, (*log.messages, said)
    if request.composed or request.session_mode == "history":
        return ids, (said,)
    return known + text.without_bos(ids), (*log.messages, said)


def _told(request: Request) -> dict[str, Any]:
    """What the template is told beside the messages."""
    tools = {"tools": list(request.tools)} if request.tools else {}
    return {**request.variables, **tools}


def _whole(request: Request, text: TextModel) -> Composed:
    """All of it is rendered: the first turn, or a history that shares no answer with the log."""
    return text.render(request.messages, **_told(request)), _messages(request)


def _history(request: Request, log: Manifest, text: TextModel) -> Composed:
    """The log up to the end of the last answer that client, template and log agree upon."""
    same = _num_same(request, log)
    answers = [i for i, message in enumerate(log.messages[:same]) if _is_generated(message)]
    shown = text.num_shown(request.messages, answers, **_told(request)) if answers else 0
    if not shown:
        return _whole(request, text)
    last = answers[shown - 1]
    rest = text.render_after(request.messages, last, **_told(request))
    if rest is None:
        return _whole(request, text)
    before = _through_answer(log, last, text)
    messages = (*log.messages[: last + 1], *_messages(request)[last + 1 :])
    return _joined(before, rest, text), messages


def _appended(request: Request, log: Manifest, text: TextModel) -> Composed:
    """All of the log, and what follows its answer when the conversation goes on so."""
    before, messages = list(log.token_ids), (*log.messages, *_messages(request))
    rest = None
    if _ends_with_answer(log, text) and all(m.role != RAW for m in log.messages):
        told = [{"role": m.role, "content": m.content} for m in messages]
        rest = text.render_after(told, len(log.messages) - 1, **_told(request))
    if rest is None:  # there is no telling how the log was written: they are rendered by themselves
        rest = text.without_bos(text.render(request.messages, **_told(request)))
    return _joined(before, rest, text), messages


def _joined(before: list[int], rest: list[int], text: TextModel) -> list[int]:
    """The end of an answer is written once: by the model, or by the template after a cut."""
    end_id = before[-1]
    if end_id in text.end_ids and end_id in rest:
        at = rest.index(end_id)
        if all(text.token_bytes(token_id).isspace() for token_id in rest[:at]):
            rest = rest[at + 1 :]
    return before + rest


def _through_answer(log: Manifest, position: int, text: TextModel) -> list[int]:
    """The log up to the end of an answer, its end token included."""
    ids, end = log.token_ids, log.messages[position].end
    return list(ids[: end + 1] if end < len(ids) and ids[end] in text.end_ids else ids[:end])


def _ends_with_answer(log: Manifest, text: TextModel) -> bool:
    if not log.messages or not _is_generated(log.messages[-1]):
        return False
    return len(_through_answer(log, len(log.messages) - 1, text)) == len(log.token_ids)


def _num_same(request: Request, log: Manifest) -> int:
    """Messages at the beginning that say the same."""
    pairs = list(zip(log.messages, request.messages, strict=False))
    return next((i for i, (m, given) in enumerate(pairs) if not _says(m, given)), len(pairs))


def _says(message: Message, given: Mapping[str, Any]) -> bool:
    return (message.role, message.content) == (given["role"], _content(given))


def _is_generated(message: Message) -> bool:
    return message.role == "assistant" and message.end > 0


def _messages(request: Request) -> tuple[Message, ...]:
    return tuple(Message(m["role"], _content(m)) for m in request.messages)


def _content(message: Mapping[str, Any]) -> str:
    """What a log keeps of a message: its text, and calls as most models write them."""
    content: str = (
        generic.plain(message)["content"] if "tool_calls" in message else message["content"]
    )
    return content


def _field(request: Request) -> str:
    return "messages" if request.messages else "prompt"


def _refuse_size(request: Request, num_tokens: int, text: TextModel) -> None:
    """Raises ComposeError for a prompt that is empty, or leaves no room for one token."""
    if num_tokens == 0:
        raise ComposeError(_field(request), "must not be empty")
    if num_tokens >= text.context_length:
        reason = (
            f"makes {num_tokens} tokens with the session's earlier turns, and the model's context "
            f"of {text.context_length} must hold the prompt and at least one token of output"
        )
        raise ComposeError(_field(request), reason, "context_length_exceeded")
