"""/v1/models, /v1/tokenize, /v1/detokenize: the model that is served, and its tokens."""

from typing import Any, Final

from anyio.to_thread import run_sync
from fastapi import APIRouter, Request
from fastapi.responses import Response

from ingest.access.gate import needs
from ingest.body import read_fields
from ingest.desk import Desk
from ingest.errors import ApiError
from ingest.fields import request_fields
from ingest.shapes import Json
from ingest.sse import json_response
from router.prompt import from_token_ids
from router.refusal import Refused

# fields that count in /v1/tokenize
TOKENIZED: Final = ("model", "prompt", "messages", "tools", "chat_template_kwargs")

routes = APIRouter(dependencies=[needs("infer")])


@routes.get("/v1/models")
async def models(request: Request) -> Response:
    """The one model that is served."""
    return json_response({"object": "list", "data": [model_object(request.app.state.desk)]})


@routes.get("/v1/models/{name}")
async def model(name: str, request: Request) -> Response:
    found = model_object(request.app.state.desk)
    if name != found["id"]:
        raise ApiError(404, f"model: there is no {name!r}", param="model", code="model_not_found")
    return json_response(found)


@routes.post("/v1/tokenize")
async def tokenize(request: Request) -> Response:
    """The token ids of a prompt or of messages, as a request with them would have them."""
    desk: Desk = request.app.state.desk
    text = desk.text_model()
    body = await read_fields(request)
    fields = request_fields({name: body.get(name) for name in TOKENIZED}, {})
    ids = (await run_sync(desk.admitted, fields, text)).token_ids
    return json_response({"count": len(ids), "max_model_len": text.context_length, "tokens": ids})


@routes.post("/v1/detokenize")
async def detokenize(request: Request) -> Response:
    """The text that token ids print; control tokens print nothing."""
    text = request.app.state.desk.text_model()
    body: dict[str, Any] = await read_fields(request)
    if body.get("model") not in (None, text.name):
        reason = f"model: must be {text.name!r}, the model that is served here"
        raise ApiError(404, reason, param="model", code="model_not_found")
    try:
        ids = from_token_ids(body.get("tokens"), text, "tokens")
    except Refused as refused:
        raise ApiError(400, refused.reason, param=refused.field, code=refused.code) from None
    printed = b"".join(map(text.token_bytes, ids)).decode(errors="replace")
    return json_response({"prompt": printed})


def model_object(desk: Desk) -> Json:
    text = desk.text_model()
    return {
        "id": text.name,
        "object": "model",
        "created": desk.started_s,
        "owned_by": "lockstep",
        "max_model_len": text.context_length,
    }
