"""What becomes of one field of an endpoint: a case of test_conformance.py, a row of the page."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

HELLO = [{"role": "user", "content": "Hello"}]
PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
NUMBERS = ("x", True, [1])


@dataclass(frozen=True)
class Field:
    """verdict: "honoured", "ignored" or "refused" (by name, 400).

    value  sent with what the endpoint requires and `beside`
    seen   (request, answer) -> whether the field had its effect; of an honoured one
    wrong  values that are refused by the field's name; (value, name of the field) where it differs
    """

    verdict: str
    value: Any
    note: str = ""
    seen: Callable[[Any, Any], bool] | None = None
    wrong: tuple[Any, ...] = ()
    beside: tuple[tuple[str, Any], ...] = ()


def param(name: str, value: Any, wrong: tuple[Any, ...], note: str = "") -> Field:
    """A sampling parameter that arrives as it is."""
    return Field("honoured", value, note, lambda r, a: getattr(r.params, name) == value, wrong)
