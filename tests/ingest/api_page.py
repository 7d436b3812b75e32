"""docs/api.md as the code says it: routes, scopes, fields of a request, the Python client.

python -m tests.ingest.api_page > docs/api.md
"""

import inspect
from collections.abc import Iterator
from typing import Any

from fastapi.routing import APIRoute

from ingest.app import THEMES
from ingest.async_client import AsyncClient
from ingest.client import Client
from router.schema import request_schema
from workers.wire import SLA_CLASSES

HEAD = """\
# The API, as the code has it

Made from the code by `python -m tests.ingest.api_page > docs/api.md`; a test holds it to that.
What becomes of each field of OpenAI's own API: [openai.md](openai.md). The same for programs:
`GET /openapi.json`, `GET /v1/schema`.
"""


def page() -> str:
    return "\n".join(
        [HEAD, "## Routes\n", *routes(), "\n## Fields of a request\n", FIELDS, *fields(), *client()]
    )


def routes() -> Iterator[str]:
    """Each route with the scope that its key needs and the first sentence of its docstring."""
    yield "| route | scope | |\n|---|---|---|"
    for theme in THEMES:
        for route in theme.routes.routes:
            assert isinstance(route, APIRoute)
            for method in sorted(route.methods):
                told = (route.endpoint.__doc__ or "").strip().split("\n\n")[0]
                yield f"| `{method} {route.path}` | {scope_of(route)} | {line(told)} |"


def scope_of(route: APIRoute) -> str:
    scopes = [getattr(needed.dependency, "scope", None) for needed in route.dependencies]
    return " ".join(f"`{scope}`" for scope in scopes if scope) or "none"


FIELDS = """\
Of `POST /v1/jobs`, of a message on a Redis stream, and of every other API beside its own fields.
"""


def fields() -> Iterator[str]:
    yield "| field | what it may be | |\n|---|---|---|"
    for name, schema in request_schema(SLA_CLASSES)["properties"].items():
        told = "" if isinstance(schema, bool) else schema.get("description", "")
        yield f"| `{name}` | {line(kind(schema))} | {line(told)} |"


def kind(schema: dict[str, Any] | bool) -> str:
    """A schema in a few words."""
    if isinstance(schema, bool):
        return "anything" if schema else "absent"
    if "anyOf" in schema:
        return ", or ".join(kind(one) for one in schema["anyOf"])
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{value}`" for value in schema.get("enum", [schema.get("const")]))
    types = schema.get("type", "anything")
    words = " or ".join(types) if isinstance(types, list) else types
    if "items" in schema:
        words += f" of {kind(schema['items'])}"
    return f"{words}{bounds(schema)}"


def bounds(schema: dict[str, Any]) -> str:
    """Its range, length and pattern, as far as it has any."""
    words = {
        "minimum": "at least {}",
        "exclusiveMinimum": "above {}",
        "maximum": "at most {}",
        "minLength": "{} characters or more",
        "maxLength": "{} characters at most",
        "minItems": "{} or more",
        "maxItems": "{} at most",
        "pattern": "like `{}`",
    }
    said = [text.format(schema[name]) for name, text in words.items() if name in schema]
    return f" ({', '.join(said)})" if said else ""


def client() -> Iterator[str]:
    """The public methods of the Python clients."""
    for kind_of in (Client, AsyncClient):
        yield f"\n## `from {kind_of.__module__} import {kind_of.__name__}`\n"
        yield line(inspect.getdoc(inspect.getmodule(kind_of)).split("\n\n")[0]) + "\n"
        yield "| | |\n|---|---|"
        for name, method in vars(kind_of).items():
            if inspect.isfunction(method) and not name.startswith("_"):
                told = (inspect.getdoc(method) or "").split("\n\n")[0]
                yield f"| `{name}{parameters(method)}` | {line(told)} |"


def parameters(method: Any) -> str:
    """A signature without self and without types."""
    found = list(inspect.signature(method).parameters.values())[1:]
    plain = [one.replace(annotation=inspect.Parameter.empty) for one in found]
    return str(inspect.Signature(plain))


def line(text: str) -> str:
    """As one cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    print(page())
