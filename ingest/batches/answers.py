"""One line of a batch as a request of its own: class `batch`, an id that a restart finds again."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ingest.access.keys import Key
from ingest.desk import PATIENT, Desk
from ingest.errors import ApiError, error_object, refused
from ingest.fields import request_fields
from ingest.openai.choices import Choice, collected, fanned_out
from ingest.openai.delivery import delivery, split
from ingest.openai.routes import SHAPES
from ingest.renamed import in_words_of
from ingest.responses import asked as responses
from ingest.responses.going import Going, whole
from ingest.responses.going import begun as begin_response
from ingest.tokens import Stopping
from ingest.turn import Turn, begin

CLASS: Final = "batch"
APIS: Final[Mapping[str, str]] = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
    "/v1/responses": "responses",
}
Begin = Callable[[Callable[[], Awaitable[Turn]]], Awaitable[Turn]]


@dataclass(frozen=True)
class Answered:
    """What a line's request was answered. code: of an error."""

    status: int
    request_id: str
    body: Any
    code: str | None = None


@dataclass(frozen=True)
class Asked:
    """A line to be answered. left_ms: of the batch's window."""

    endpoint: str
    body: Mapping[str, Any]
    request_id: str
    left_ms: int


async def answer_line(desk: Desk, key: Key, asked: Asked, begun: Begin) -> Answered:
    """The answer that the endpoint would have given, an error too.

    begun  called with what begins a turn: it begins when the node takes it, and is known to whoever
           may want to cancel it

    Raises Stopping when this process ends first.
    """
    try:
        return Answered(200, asked.request_id, await _whole(desk, key, asked, begun))
    except ApiError as error:
        if error.code == "stopping":
            raise Stopping from None
        return Answered(error.status, asked.request_id, error_object(error), error.code)


async def _whole(desk: Desk, key: Key, asked: Asked, begun: Begin) -> Any:
    if asked.body.get("stream"):
        raise refused("stream", "a line of a batch is answered whole; leave it out")
    if asked.endpoint == "/v1/responses":
        return await _response(desk, key, asked, begun)
    api = APIS[asked.endpoint]
    how = delivery(asked.body)
    fields, prompts = split(api, fields_of(asked))
    choices: list[Choice] = []
    for one in fanned_out(fields, prompts, how.n, key.tenant):

        async def beginning(one: Mapping[str, Any] = one) -> Turn:
            return await begin(desk, one, key=key, door=PATIENT)

        choices.append(Choice(len(choices), await begun(beginning)))
    answers = await collected(choices)
    return SHAPES[api](choices, desk.text_model(), how).whole(answers)


async def _response(desk: Desk, key: Key, asked: Asked, begun: Begin) -> Any:
    """Of a response: its id says whose line it is."""
    body = fields_of(asked)
    responses.check(body)
    going: list[Going] = []

    async def beginning() -> Turn:
        own_id = f"resp_{asked.request_id.removeprefix('batch_')}"
        going.append(await begin_response(desk, key, body, {}, own_id=own_id, door=PATIENT))
        return going[0].turn

    with in_words_of(responses.NAMES):
        await begun(beginning)
    return await whole(going[0])


def fields_of(asked: Asked) -> dict[str, Any]:
    """The request's fields. Raises ApiError."""
    fields = request_fields({**asked.body, "id": asked.request_id}, {})
    if fields.setdefault("sla", CLASS) != CLASS:
        raise refused("sla", f"a batch runs as class {CLASS!r}; leave it out")
    fields.setdefault("deadline_ms", max(1, asked.left_ms))
    return fields
