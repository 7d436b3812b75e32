"""How much a chat template may do: a file from anywhere must neither hang a process nor fill it.

    steps   items of loops and calls           MAX_STEPS, and MAX_SECONDS of this thread's time
    text    characters of one text             MAX_TEXT
            characters made in all             MAX_MADE

A template is rewritten when it is parsed: loops draw their items through `counted`, ~ becomes a
call of `joined`. Operators, calls, filters and the joining of output come through here anyhow. A
text that would be too large is refused before it is made.
"""

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from math import prod
from typing import Any, Final

from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

MAX_STEPS: Final = 2_000_000
MAX_SECONDS: Final = 2.0
MAX_TEXT: Final = 1 << 24
MAX_MADE: Final = 1 << 27
MAX_BITS: Final = 1 << 12  # of a number
ITEM_CHARS: Final = 64  # an item of a list counts as so many characters
WIDTH_FROM_VALUE: Final = re.compile(r"\{[^{}]*\{")
CLOCK_STEPS: Final = 64


class Budget:
    """What one rendering has used."""

    def __init__(self) -> None:
        self.steps = self.made = 0
        self.begin_s = time.thread_time()

    def step(self) -> None:
        self.steps += 1
        if self.steps > MAX_STEPS:
            raise SecurityError(f"it takes more than {MAX_STEPS} steps")
        if self.steps % CLOCK_STEPS == 0 and time.thread_time() - self.begin_s > MAX_SECONDS:
            raise SecurityError(f"it runs for more than {MAX_SECONDS:.0f} seconds")

    def make(self, size: int) -> None:
        """So many characters, or items, more."""
        expect_short(size)
        self.made += size
        if self.made > MAX_MADE:
            raise SecurityError(f"it makes more than {MAX_MADE} characters")


BUDGET: ContextVar[Budget] = ContextVar("budget")


@contextmanager
def budget() -> Iterator[None]:
    """What is rendered inside counts together."""
    token = BUDGET.set(Budget())
    try:
        yield
    finally:
        BUDGET.reset(token)


def expect_short(size: int) -> None:
    if size > MAX_TEXT:
        raise SecurityError(f"it makes a text of more than {MAX_TEXT} characters")


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """jinja2's sandbox, bounded. Filters must be given with `filters`, so that they are wrapped."""

    intercepted_binops = frozenset(["+", "*", "**", "%"])

    def __init__(self, filters: dict[str, Callable[..., Any]], **options: Any) -> None:
        super().__init__(**options)
        for name, function in {**self.filters, **filters}.items():
            self.filters[name] = _bounded(name, function)

    def parsed(self, source: str) -> nodes.Template:
        """The template, counting its steps."""
        tree: nodes.Template = _Counting().visit(self.parse(source))
        return tree.set_environment(self)  # type: ignore[return-value]

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """One of intercepted_binops."""
        BUDGET.get().step()
        if operator in ("*", "**") and isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * (right if operator == "**" else 1) + right.bit_length()
            if bits > MAX_BITS:
                raise SecurityError(f"it makes a number of more than {MAX_BITS} bits")
        elif operator == "*":
            expect_short(_length(left) * _count(right) + _count(left) * _length(right))
        elif operator == "%" and isinstance(left, str):
            expect_short(_formatted(left, right if isinstance(right, tuple) else (right,)))
        else:
            expect_short(_length(left) + _length(right))
        return _made(super().call_binop(context, operator, left, right))

    def call(
        *arguments: Any, **named: Any
    ) -> Any:  # the names of its parameters are the template's
        """Every call that a template makes."""
        self, context, function, *given = arguments
        BUDGET.get().step()
        method = getattr(function, "__wrapped__", function)  # the sandbox wraps str.format
        owner = getattr(method, "__self__", None)
        if isinstance(owner, str):
            name = method.__name__
            given = _drawn(name, given)
            expect_short(_at_most(name, [owner, *given, *named.values()]))
        result = super(BoundedEnvironment, self).call(context, function, *given, **named)
        return _made(result)

    def counted(self, items: Iterable[Any]) -> Iterator[Any]:
        """What a loop draws from."""
        spent = BUDGET.get()
        for item in items:
            spent.step()
            yield item

    def joined(self, *values: Any) -> str:
        """a ~ b ~ c"""
        texts = [str(value) for value in values]
        expect_short(sum(map(len, texts)))
        return str(_made("".join(texts)))

    def concat(self, texts: Iterable[str]) -> str:
        """The pieces of the output, of a macro, of a block that is set."""
        pieces, spent = [], BUDGET.get()
        for text in texts:
            spent.make(len(text))
            pieces.append(text)
        expect_short(sum(map(len, pieces)))
        return "".join(pieces)


class _Counting(NodeTransformer):
    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = _call("counted", [node.iter], node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _call("joined", node.nodes, node.lineno)


def _call(name: str, arguments: list[Any], line: int) -> nodes.Expr:
    function = nodes.EnvironmentAttribute(name, lineno=line)
    return nodes.Call(function, arguments, [], None, None, lineno=line)


def _bounded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that refuses what would be too large."""

    @wraps(function)  # keeps the marks by which jinja2 knows what to pass
    def bounded(*given: Any, **named: Any) -> Any:
        BUDGET.get().step()
        drawn = _drawn(name, given)
        expect_short(_at_most(name, [*drawn, *named.values()]))
        return _made(function(*drawn, **named))

    return bounded


def _drawn(name: str, values: Sequence[Any]) -> list[Any]:
    """What is joined, drawn to its end: its length is known before the text is made."""
    if name != "join":
        return list(values)
    return [list(value) if isinstance(value, Iterator) else value for value in values]


def _made(value: Any) -> Any:
    if isinstance(value, (str, list, tuple)):
        BUDGET.get().make(_length(value))
    return value


def _at_most(name: str, values: Sequence[Any]) -> int:
    """Characters that a method of a text, or a filter, can make of these at most, roughly."""
    texts = [v for v in values if isinstance(v, str)]
    if name == "replace" and len(texts) > 2:
        return len(texts[0]) + texts[0].count(texts[1]) * len(texts[2])
    if name in ("format", "format_map") and texts:
        return _formatted(texts[0], values[1:])
    if name in ("split", "rsplit", "splitlines") and texts:
        ends = texts[1:2] or [" ", "\n"]
        return len(texts[0]) + sum(map(texts[0].count, ends)) * ITEM_CHARS
    items = [v for v in values if isinstance(v, (list, tuple))]
    if name == "join":
        sizes = [len(v) for v in values if isinstance(v, Sized)]
        return prod(sizes[:2]) + sum(_length(text) for item in items for text in item)
    times = [v for v in values if isinstance(v, int) and not isinstance(v, bool) and v > 0]
    return sum(map(len, [*texts, *items])) * (1 + sum(times)) + sum(times)


def _formatted(form: str, values: Iterable[Any]) -> int:
    """A width is a run of digits in the form, or a value; each place may show all values."""
    longest = "".join(c if c.isdigit() else " " for c in form).split()
    if any(len(digits) > 4 for digits in longest):
        raise SecurityError("it formats a text of a great width")
    if WIDTH_FROM_VALUE.search(form.replace("{{", "").replace("}}", "")):
        raise SecurityError("it formats a text of a width that is a value")
    widths = sum(v for v in values if isinstance(v, int) and "*" in form)
    places = form.count("{") + form.count("%")
    return len(form) + places * (sum(len(str(v)) for v in values) + 9999 * bool(longest) + widths)


def _length(value: Any) -> int:
    """Characters, or what the items of a list take in their place."""
    if isinstance(value, (list, tuple)):
        return len(value) * ITEM_CHARS
    return len(value) if isinstance(value, str) else 0


def _count(value: Any) -> int:
    return max(0, value) if isinstance(value, int) else 0
