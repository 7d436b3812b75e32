"""The chat template that came with the model, run in a sandbox.

Templates are written for the settings of Hugging Face's library (trimmed blocks, loop controls,
tojson that neither sorts nor escapes, raise_exception, strftime_now), so these are ours.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

# beside jinja2's own: text + None, missing keys, 1 // 0, endless recursion
TEMPLATE_ERRORS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


class TemplateError(ValueError):
    """The template refused the messages; the message is one sentence for the client."""


class ChatTemplate:
    """messages -> the text that the model was trained to continue."""

    def __init__(self, source: str) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise TemplateError(f"the model's chat template is broken: {error}") from error

    def render(self, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]) -> str:
        """Raises TemplateError."""
        try:
            return self._template.render({**variables, "messages": messages})
        except TEMPLATE_ERRORS as error:
            raise TemplateError(f"the chat template refuses the messages: {error}") from error


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _to_json(value: Any, indent: int | None = None, ensure_ascii: bool = False) -> str:
    return json.dumps(value, indent=indent, ensure_ascii=ensure_ascii)
