"""GET /openapi.json: every route with what its body may hold, for tools that read OpenAPI 3.1.

The routes are FastAPI's own list; bodies are those of router/schema.py, as each API has them. What
a body may hold is checked by admission alone (router/admit.py): this document only tells.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from ingest.shapes import Json
from router.schema import request_schema

TEXT: Final[Json] = {"type": "string"}
ERROR: Final[Json] = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "message": TEXT,
                "type": TEXT,
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
ANSWERS: Final[Json] = {
    "200": {"description": "what was asked for"},
    "default": {
        "description": "429 and 503 say in Retry-After when to ask again",
        "content": {"application/json": {"schema": ERROR}},
    },
}
PAGES: Final[Sequence[Json]] = (
    {"name": "limit", "in": "query", "schema": {"type": "integer", "minimum": 1}},
    {"name": "after", "in": "query", "schema": TEXT},
)
LISTS: Final = ("/v1/sessions", "/v1/jobs", "/v1/files", "/v1/batches")
FILE: Final[Json] = {
    "type": "object",
    "properties": {"file": {"type": "string", "format": "binary"}, "purpose": TEXT},
    "required": ["file", "purpose"],
}


def install(app: FastAPI, classes: Sequence[str]) -> None:
    """Makes app.openapi() this document, once it is asked for."""
    made: Json = {}

    def document() -> Json:
        if not made:
            made.update(described(app, classes))
        return made

    app.openapi = document  # type: ignore[method-assign]  # FastAPI's documented way


def described(app: FastAPI, classes: Sequence[str]) -> Json:
    """The whole document. classes: names of the node's SLA classes."""
    told: Json = get_openapi(title="Lockstep", version="1", routes=app.routes)
    bodies = bodies_of(classes)
    for path, operations in told["paths"].items():
        for method, operation in operations.items():
            operation["responses"] = ANSWERS
            if method == "post" and path in bodies:
                kind = "multipart/form-data" if path == "/v1/files" else "application/json"
                content = {kind: {"schema": bodies[path]}}
                operation["requestBody"] = {"required": True, "content": content}
            if method == "get" and path in LISTS:
                operation["parameters"] = [*operation.get("parameters", ()), *PAGES]
    told["components"] = {"securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}}
    told["security"] = [{"key": []}, {}]
    return told


def bodies_of(classes: Sequence[str]) -> Mapping[str, Json]:
    """The schema of the body of each POST."""
    request = request_schema(classes)
    fields = {name: value for name, value in request["properties"].items() if name != "tenant"}
    request = {"type": "object", "properties": fields}
    stream = {"stream": {"type": ["boolean", "null"]}, "stream_options": {"type": "object"}}

    def of_api(source: str, *required: str, **more: Json) -> Json:
        others = ("prompt", "messages", "token_ids")
        own = {n: value for n, value in fields.items() if n == source or n not in others}
        return {
            "type": "object",
            "properties": {**own, **stream, **more},
            "required": [source, *required],
        }

    messages = of_api("messages")
    return {
        "/v1/chat/completions": messages,
        "/v1/completions": of_api("prompt"),
        "/v1/responses": of_api("input", input={"type": ["string", "array"]}, instructions=TEXT),
        "/v1/messages": of_api("messages", "max_tokens", system=TEXT),
        "/v1/messages/count_tokens": messages,
        "/v1/jobs": request,
        "/v1/tokenize": request,
        "/v1/jobs/{request_id}/promote": {
            "type": "object",
            "properties": {"sla": {"enum": list(classes)}},
            "required": ["sla"],
        },
        "/v1/files": FILE,
        "/v1/batches": {
            "type": "object",
            "properties": {"input_file_id": TEXT, "endpoint": TEXT, "completion_window": TEXT},
            "required": ["input_file_id", "endpoint", "completion_window"],
        },
    }
