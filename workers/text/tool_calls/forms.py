r"""How a model writes a call of a tool: which form its chat template speaks, and its grammar.

    hermes  <tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>       Qwen2.5, Qwen3
    xml     <tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n           Qwen3.5
            </function>\n</tool_call>
    llama   {"name": "f", "parameters": {"a": 1}}                                 Llama 3

A template that knows no tools is told of them in a system message, in the form hermes
(generic.py). Grammars are in llguidance's dialect of Lark.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

Schema = Mapping[str, Any]
Tool = Mapping[str, Any]  # {"type": "function", "function": {name, description, parameters}}

BEGIN: Final = "<tool_call>"
END: Final = "</tool_call>"
ANY_OBJECT: Final[Schema] = {"type": "object"}
JSON_STYLE: Final = {  # as templates write JSON: one style, so that whitespace cannot run away
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
}


def form_of(template: str | None) -> str:
    """The form in which the model of this chat template writes calls."""
    source = template or ""
    if "<function=" in source:
        return "xml"
    if BEGIN in source:
        return "hermes"
    is_llama = "tools" in source and '"parameters"' in source and "ipython" in source.lower()
    return "llama" if is_llama else "hermes"


def json_rule(schema: Schema, lenient: bool) -> str:
    """A rule's body: JSON of this schema. lenient: what cannot be enforced is left out."""
    style = JSON_STYLE | ({"lenient": True} if lenient else {})
    return "%json " + json.dumps({**schema, "x-guidance": style})


def calls_grammar(form: str, tools: Sequence[Tool], *, most: int | None, any_text: bool) -> str:
    """Rules of `calls`: what the model may write when it has these tools.

    most      calls at most; None: any number
    any_text  calls or not, with text around them; else at least one call, and nothing else
    """
    bodies = [_body(form, index, tool) for index, tool in enumerate(tools)]
    names = " | ".join(f"f{index}" for index in range(len(tools)))
    rules = [f"body: {names}", *bodies]
    if form == "llama":
        rules += ["call: body", 'between: "; "']
    elif any_text:
        # the trigger is found as soon as it is complete: after it there is no way back to text
        rules += [f'begin[lazy]: TEXT "{BEGIN}"', f'call: begin "\\n" body "\\n{END}"']
        rules += ["TEXT: /(.|\\n)*/", "rest: TEXT"]
    else:
        rules += [f'call: "{BEGIN}\\n" body "\\n{END}"', 'between: "\\n"']
    if any_text:
        rules.append("calls: call? rest" if most == 1 else "calls: call* rest")
    else:
        rules.append("calls: call" if most == 1 else "calls: call (between call)*")
    if most == 1:
        rules = [rule for rule in rules if not rule.startswith("between")]
    return "\n".join(rules)


def _body(form: str, index: int, tool: Tool) -> str:
    """The rule f{index}: the call of one function, between its marks."""
    function = tool["function"]
    schema = function.get("parameters") or ANY_OBJECT
    lenient = function.get("strict") is not True
    if form == "xml":
        return _xml_body(index, function["name"], schema, lenient)
    key = "parameters" if form == "llama" else "arguments"
    head = json.dumps(f'{{"name": "{function["name"]}", "{key}": ')
    return f'f{index}: {head} a{index} "}}"\na{index}: {json_rule(schema, lenient)}'


def _xml_body(index: int, name: str, schema: Schema, lenient: bool) -> str:
    head, tail = json.dumps(f"<function={name}>\n"), json.dumps("</function>")
    properties = schema.get("properties") or {}
    required = set(schema.get("required") or ())
    if not properties:
        value = f"v{index}[lazy]: /(.|\\n)*/ {json.dumps(_CLOSE)}"
        anything = f'p{index}: "<parameter=" /[^>\\n]+/ ">\\n" v{index}'
        return f"f{index}: {head} p{index}* {tail}\n{anything}\n{value}"
    parts, rules = [], []
    for number, (key, value_schema) in enumerate(properties.items()):
        part = f"p{index}_{number}"
        parts.append(part if key in required else f"{part}?")
        opened = json.dumps(f"<parameter={key}>\n")
        rules.append(f"{part}: {opened} v{index}_{number}")
        rules.append(f"v{index}_{number}{_xml_value(value_schema, schema, lenient)}")
    return "\n".join([f"f{index}: {head} {' '.join(parts)} {tail}", *rules])


_CLOSE: Final = "\n</parameter>\n"


def _xml_value(value: Any, schema: Schema, lenient: bool) -> str:
    """The rest of a rule: a value up to its end mark. Texts stand as they are, all else as JSON."""
    close = json.dumps(_CLOSE)
    if is_text(value):
        allowed: Sequence[Any] = value.get("enum") or ([value["const"]] if "const" in value else [])
        if allowed:
            return f": ({' | '.join(json.dumps(str(text)) for text in allowed)}) {close}"
        return f"[lazy]: /(.|\\n)*/ {close}"
    whole = dict(value) if isinstance(value, Mapping) else {}
    for name in ("$defs", "definitions"):  # a $ref inside points to the root
        if name in schema:
            whole[name] = schema[name]
    return f": j {close}".replace("j", f"({json_rule(whole, lenient)})", 1)


def is_text(schema: Any) -> bool:
    """Whether a value of this schema is a text, so that it is written without quotes."""
    if not isinstance(schema, Mapping):
        return False
    if schema.get("type") == "string":
        return True
    listed = schema.get("enum") or ()
    return "type" not in schema and bool(listed) and all(isinstance(v, str) for v in listed)
