"""The chat template that came with the model, run in a sandbox that bounds what it does.

Templates are written for the settings of Hugging Face's library (trimmed blocks, loop controls,
tojson that neither sorts nor escapes, raise_exception, strftime_now), so these are ours.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NoReturn

import jinja2
from jinja2.exceptions import SecurityError
from jinja2.meta import find_undeclared_variables

from workers.text.bounds import BoundedEnvironment, budget

MAX_SOURCE: Final = 1 << 20  # characters
MAX_TIME_FORM: Final = 1000
# beside jinja2's own: text + None, missing keys, 1 // 0, endless recursion
TEMPLATE_ERRORS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)
USER: Final = {"role": "user", "content": "Good day"}
TRIAL_VARIABLES: Final = {"add_generation_prompt": True, "bos_token": "", "eos_token": ""}
TRIALS: Final[tuple[Sequence[Mapping[str, Any]], ...]] = (
    [USER],
    [{"role": "system", "content": "Be kind."}, USER],
    [USER, {"role": "assistant", "content": "Good day to you"}, USER],
)


class TemplateError(ValueError):
    """The template refused the messages; the message is one sentence for the client."""


class BadTemplate(TemplateError):
    """The template must not run: it is broken, runs away, or reaches for what it must not."""


class ChatTemplate:
    """messages -> the text that the model was trained to continue."""

    def __init__(self, source: str) -> None:
        """Raises BadTemplate."""
        if len(source) > MAX_SOURCE:
            raise BadTemplate(f"the model's chat template has more than {MAX_SOURCE} characters")
        environment = BoundedEnvironment(
            {"tojson": _to_json},
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols"],
        )
        environment.globals.pop("lipsum", None)  # makes texts of any size in one step
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        try:
            with budget():
                self._names = find_undeclared_variables(environment.parse(source))
                self._template = environment.from_string(environment.parsed(source))
        except (*TEMPLATE_ERRORS, SyntaxError) as error:
            raise BadTemplate(f"the model's chat template is broken: {_line(error)}") from error

    def knows(self, name: str) -> bool:
        """Whether it asks for a variable of this name."""
        return name in self._names

    def render(self, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]) -> str:
        """Raises TemplateError."""
        try:
            with budget():
                return self._template.render({**variables, "messages": messages})
        except (SecurityError, OverflowError, RecursionError, MemoryError) as error:
            raise BadTemplate(f"the model's chat template is not run: {_line(error)}") from error
        except TEMPLATE_ERRORS as error:
            raise TemplateError(
                f"the chat template refuses the messages: {_line(error)}"
            ) from error

    def try_out(self) -> None:
        """Render small conversations. Raises BadTemplate; a template may refuse some of them, but
        not all.
        """
        refusals: list[TemplateError] = []
        for messages in TRIALS:
            try:
                self.render(messages, TRIAL_VARIABLES)
            except BadTemplate:
                raise
            except TemplateError as error:
                refusals.append(error)
        if len(refusals) == len(TRIALS):
            reason = f"the model's chat template refuses even one question: {refusals[0]}"
            raise BadTemplate(reason) from refusals[0]


def _line(error: BaseException) -> str:
    """What it says, in one line of bounded length."""
    said = " ".join(str(error).split())[:300]
    return said or type(error).__name__


def _strftime_now(form: str) -> str:
    if len(form) > MAX_TIME_FORM:
        raise SecurityError("it formats the time at great length")
    return datetime.now().strftime(form)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _to_json(value: Any, indent: int | None = None, ensure_ascii: bool = False) -> str:
    return json.dumps(value, indent=indent, ensure_ascii=ensure_ascii)
