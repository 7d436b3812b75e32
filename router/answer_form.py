"""What an answer must look like: tools, tool_choice, parallel_tool_calls and response_format.

    response_format   text, json_object, or json_schema {name, schema, strict}
    tools             functions with a JSON Schema of their parameters
    tool_choice       none, auto (when there are tools), required, or the name of one

Of these one grammar is made (workers/text/grammar.py), compiled and thrown away: what cannot be
enforced is refused here.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from router.fields import check_json
from router.refusal import Refused, shown, text_of
from workers.text.grammar import BadGrammar, Wanted, check, grammar_of
from workers.text.text_model import TextModel

TOOLS_MAX: Final = 128
SCHEMA_DEPTH_MAX: Final = 64
NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
CHOICES: Final = ("none", "auto", "required")
FORMATS: Final = ("text", "json_object", "json_schema")
ANSWER_FORM: Final = ("tools", "tool_choice", "parallel_tool_calls", "response_format", "grammar")
SCHEMA: Final = "response_format.json_schema"

Tool = dict[str, Any]


@dataclass(frozen=True)
class AnswerForm:
    """tools: those that the model is told of; grammar: of its answer, "" when it is free."""

    tools: tuple[Tool, ...] = ()
    grammar: str = ""


def answer_form(
    values: Mapping[str, Any], text: TextModel, variables: Mapping[str, Any]
) -> AnswerForm:
    """The form that these fields ask for. Raises Refused.

    variables  of the chat template: they say whether the model thinks first
    """
    if "grammar" in values:
        return AnswerForm(grammar=grammar_given(values))
    tools = tools_of(values.get("tools", []))
    choice, called = choice_of(values, tools)
    most = None if flag(values, "parallel_tool_calls", True) else 1
    schema, lenient = format_of(values.get("response_format", {"type": "text"}))
    told = tools if choice != "none" else ()
    thoughts = text.thoughts(variables) if "messages" in values else ""
    wanted = Wanted(text.tool_form, called, choice, most, schema, lenient, thoughts)
    grammar = grammar_of(wanted)
    if grammar:
        refuse_unenforceable(grammar, wanted)
    return AnswerForm(told, grammar)


def grammar_given(values: Mapping[str, Any]) -> str:
    """A grammar in llguidance's Lark: a client's own, or what the HTTP door made."""
    for name in ("tools", "response_format"):
        if name in values:
            raise Refused("grammar", f"does not go with {name}")
    grammar = text_of("grammar", values["grammar"])
    try:
        check(grammar)
    except BadGrammar as error:
        raise Refused("grammar", str(error), "unsupported") from None
    return grammar


def tools_of(value: Any) -> tuple[Tool, ...]:
    """The functions, each with what we know of it and nothing else."""
    if not isinstance(value, list | tuple):
        raise Refused("tools", f"must be a list of tools, got {shown(value)}")
    if len(value) > TOOLS_MAX:
        raise Refused("tools", f"must be at most {TOOLS_MAX}, got {len(value)}")
    tools = tuple(tool_of(f"tools[{index}]", item) for index, item in enumerate(value))
    seen: set[str] = set()
    for index, tool in enumerate(tools):
        name = tool["function"]["name"]
        if name in seen:
            raise Refused(
                f"tools[{index}].function.name", f"must be given once, got {shown(name)} again"
            )
        seen.add(name)
    return tools


def tool_of(field: str, value: Any) -> Tool:
    if not isinstance(value, Mapping) or value.get("type") != "function":
        raise Refused(
            f"{field}.type" if isinstance(value, Mapping) else field,
            "must be 'function': no other tools are offered",
        )
    function = value.get("function")
    if not isinstance(function, Mapping):
        raise Refused(
            f"{field}.function", f"must be a map with name and parameters, got {shown(function)}"
        )
    result: Tool = {"name": name_of(f"{field}.function.name", function.get("name"))}
    if function.get("description") is not None:
        result["description"] = text_of(f"{field}.function.description", function["description"])
    if function.get("parameters") is not None:
        result["parameters"] = schema_of(f"{field}.function.parameters", function["parameters"])
    if flag(function, "strict", False, f"{field}.function.strict"):
        result["strict"] = True
    return {"type": "function", "function": result}


def name_of(field: str, value: Any) -> str:
    if not isinstance(value, str) or not NAME.fullmatch(value):
        allowed = "must be 1 to 64 of A-Z, a-z, 0-9, _ and -"
        raise Refused(field, f"{allowed}, got {shown(value)}")
    return value


def schema_of(field: str, value: Any) -> dict[str, Any]:
    """A JSON Schema as far as its shape goes; whether it can be enforced, its grammar tells."""
    if not isinstance(value, Mapping):
        raise Refused(field, f"must be a JSON Schema, a map, got {shown(value)}")
    check_json(field, value, SCHEMA_DEPTH_MAX)
    return dict(value)


def choice_of(values: Mapping[str, Any], tools: Sequence[Tool]) -> tuple[str, tuple[Tool, ...]]:
    """("none", "auto" or "required", the tools that may be called)."""
    given = values.get("tool_choice", "auto" if tools else "none")
    if isinstance(given, Mapping):
        return "required", (named(given, tools),)
    if given not in CHOICES:
        allowed = f"must be one of {', '.join(CHOICES)}, or {{type: function, function: {{name}}}}"
        raise Refused("tool_choice", f"{allowed}, got {shown(given)}")
    if given == "required" and not tools:
        raise Refused("tool_choice", "needs tools to choose from")
    return (str(given), tuple(tools)) if tools else ("none", ())


def named(given: Mapping[str, Any], tools: Sequence[Tool]) -> Tool:
    function = given.get("function")
    if given.get("type") != "function" or not isinstance(function, Mapping):
        raise Refused("tool_choice", "must be {type: function, function: {name}}")
    for tool in tools:
        if tool["function"]["name"] == function.get("name"):
            return tool
    name = shown(function.get("name"))
    raise Refused("tool_choice.function.name", f"must be the name of one of the tools, got {name}")


def format_of(value: Any) -> tuple[dict[str, Any] | None, bool]:
    """(the schema of the answer or None, whether what cannot be enforced is left out)."""
    if not isinstance(value, Mapping) or value.get("type") not in FORMATS:
        got = shown(value.get("type")) if isinstance(value, Mapping) else shown(value)
        raise Refused("response_format", f"must have the type {', '.join(FORMATS)}, got {got}")
    if value["type"] == "text":
        return None, False
    if value["type"] == "json_object":
        return {"type": "object"}, False
    given = value.get("json_schema")
    if not isinstance(given, Mapping):
        raise Refused(SCHEMA, f"must be a map with name and schema, got {shown(given)}")
    name_of(f"{SCHEMA}.name", given.get("name", "answer"))
    strict = flag(given, "strict", False, f"{SCHEMA}.strict")
    return schema_of(f"{SCHEMA}.schema", given.get("schema")), not strict


def flag(values: Mapping[str, Any], name: str, absent: bool, field: str | None = None) -> bool:
    value = values.get(name)
    if value is not None and not isinstance(value, bool):
        raise Refused(field or name, f"must be true or false, got {shown(value)}")
    return absent if value is None else value


def refuse_unenforceable(grammar: str, wanted: Wanted) -> None:
    """Raises Refused for a grammar that does not compile, and names the schema it is of."""
    try:
        check(grammar)
        return
    except BadGrammar as error:
        whole = error
    for tool in wanted.tools:
        try:
            check(grammar_of(wanted.of_one(tool)))
        except BadGrammar as error:
            reason = f"the schema of {tool['function']['name']!r} {error}"
            raise Refused("tools", reason, "unsupported") from None
    field = "response_format" if wanted.schema is not None else "tools"
    raise Refused(field, str(whole), "unsupported") from None
