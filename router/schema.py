"""The request as JSON Schema, for clients: made from the same limits that admit uses.

It says what can be said without the node: which model is served, how long its context is and
which addresses a webhook may reach is decided at admission. A field that is null counts as absent.
"""

from collections.abc import Sequence
from typing import Any, Final

from router.admit import ID, TENANT
from router.answer_form import CHOICES, FORMATS, NAME, TOOLS_MAX
from router.fields import DEADLINE, UNSUPPORTED
from router.messages import CALLS_MAX, ROLES
from router.prompt import (
    EFFORT,
    EFFORTS,
    OWN_VARIABLES,
    VARIABLE,
    VARIABLE_BYTES_MAX,
    VARIABLES,
    VARIABLES_MAX,
)
from router.sampling import BIAS, BIASES_MAX, LOGPROBS, RANGES, STOP_CHARS_MAX, STOP_MAX, Range
from workers.wire import (
    EVENTS,
    SECRET_ID,
    SESSION_ID,
    SESSION_MODES,
    VERSION,
)

Schema = dict[str, Any]

TEXT: Final[Schema] = {"type": "string"}
TEXT_OR_NULL: Final[Schema] = {"type": ["string", "null"]}
TOKEN_IDS: Final[Schema] = {
    "type": "array",
    "items": {"type": "integer", "minimum": 0},
    "minItems": 1,
}
STOP: Final[Schema] = {"type": "string", "minLength": 1, "maxLength": STOP_CHARS_MAX}
TEXT_PARTS: Final[Schema] = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"type": {"const": "text"}, "text": TEXT},
        "required": ["type", "text"],
    },
}
CALL: Final[Schema] = {
    "type": "object",
    "properties": {
        "id": {"type": ["string", "null"]},
        "type": {"const": "function"},
        "function": {
            "type": "object",
            "properties": {"name": TEXT, "arguments": {"type": ["string", "object"]}},
            "required": ["name", "arguments"],
        },
    },
    "required": ["function"],
}
MESSAGE: Final[Schema] = {
    "type": "object",
    "properties": {
        "role": {"enum": list(ROLES)},
        "content": {"anyOf": [TEXT, TEXT_PARTS, {"type": "null"}]},
        "tool_calls": {"type": ["array", "null"], "items": CALL, "maxItems": CALLS_MAX},
        "name": TEXT_OR_NULL,
        "tool_call_id": TEXT_OR_NULL,
        "reasoning_content": TEXT_OR_NULL,
        "function_call": {"type": "null"},
    },
    "required": ["role"],
    "anyOf": [
        {"properties": {"content": {"not": {"type": "null"}}}, "required": ["content"]},
        {
            "properties": {"role": {"const": "assistant"}, "tool_calls": {"minItems": 1}},
            "required": ["tool_calls"],
        },
    ],
    "if": {"properties": {"role": {"const": "tool"}}},
    "then": {"properties": {"tool_call_id": TEXT}, "required": ["tool_call_id"]},
}
JSON_SCHEMA: Final[Schema] = {"type": "object"}
TOOL: Final[Schema] = {
    "type": "object",
    "properties": {
        "type": {"const": "function"},
        "function": {
            "type": "object",
            "properties": {
                "name": {**TEXT, "pattern": f"^{NAME.pattern}$"},
                "description": {"type": ["string", "null"]},
                "parameters": {"type": ["object", "null"]},
                "strict": {"type": ["boolean", "null"]},
            },
            "required": ["name"],
        },
    },
    "required": ["type", "function"],
}
NAMED: Final[Schema] = {
    "type": "object",
    "properties": {
        "type": {"const": "function"},
        "function": {"type": "object", "properties": {"name": TEXT}, "required": ["name"]},
    },
    "required": ["type", "function"],
}
FORMAT: Final[Schema] = {
    "type": "object",
    "properties": {
        "type": {"enum": list(FORMATS)},
        "json_schema": {
            "type": "object",
            "properties": {
                "name": {**TEXT, "pattern": f"^{NAME.pattern}$"},
                "schema": JSON_SCHEMA,
                "strict": {"type": ["boolean", "null"]},
            },
            "required": ["schema"],
        },
    },
    "required": ["type"],
    "if": {"properties": {"type": {"const": "json_schema"}}},
    "then": {"required": ["json_schema"]},
}
CHOSEN: Final[Schema] = {"type": ["array", "null"], "items": {"enum": list(EVENTS)}}
WEBHOOK: Final[Schema] = {
    "type": "object",
    "properties": {
        "url": TEXT,
        "events": {**CHOSEN, "description": "what is posted; absent: every end"},
        "secret_id": {"type": ["string", "null"], "pattern": f"^{SECRET_ID.pattern}$"},
    },
    "required": ["url"],
}


def request_schema(classes: Sequence[str]) -> Schema:
    """JSON Schema of the map that goes into a request stream or to POST /v1/jobs.

    classes  names of the node's SLA classes
    """
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Lockstep request",
        "description": "Unknown fields are ignored; a field that is null counts as absent.",
        "type": "object",
        "properties": {
            **identity(classes),
            **prompt(),
            **sampling(),
            **session(),
            **unsupported(),
            **answer(),
            EFFORT: {"enum": list(EFFORTS), "description": "for templates that know it"},
            VARIABLES: template_variables(),
            "webhook": WEBHOOK,
            "webhook_url": {**TEXT, "description": "short for webhook {url}"},
            "metadata": {"type": "object", "description": "comes back with the result"},
            "traceparent": {"description": "W3C Trace Context; ignored if it is none"},
        },
        "oneOf": [{"required": [source]} for source in prompt()],
        "dependentRequired": {"session_mode": ["session_id"]},
    }


def identity(classes: Sequence[str]) -> Schema:
    id_pattern, tenant_pattern = f"^(?!.*--){ID.pattern}$", f"^{TENANT.pattern}$"
    return {
        "v": {"const": VERSION},
        "id": {**TEXT, "pattern": id_pattern, "description": "absent: CLASS-<stream entry id>"},
        "tenant": {**TEXT, "pattern": tenant_pattern, "description": "absent: default"},
        "model": {**TEXT, "description": "absent: the served model"},
        "sla": {"enum": list(classes), "description": "absent: the stream's, or standard"},
        "deadline_ms": {**number(DEADLINE), "description": "from arrival"},
    }


def prompt() -> Schema:
    """One of these three is wanted."""
    return {
        "prompt": {"anyOf": [{**TEXT, "minLength": 1}, TOKEN_IDS]},
        "messages": {"type": "array", "items": MESSAGE, "minItems": 1},
        "token_ids": TOKEN_IDS,
    }


def answer() -> Schema:
    """What the answer must look like; whether a schema can be enforced is told at admission."""
    lark = "of the answer, in llguidance's Lark; not with tools or response_format"
    return {
        "tools": {"type": "array", "items": TOOL, "maxItems": TOOLS_MAX},
        "tool_choice": {"anyOf": [{"enum": list(CHOICES)}, NAMED]},
        "parallel_tool_calls": {"type": "boolean"},
        "response_format": FORMAT,
        "grammar": {**TEXT, "description": lark},
    }


def session() -> Schema:
    mode = "absent: history if messages hold a system or assistant message, or the first one known"
    return {
        "session_id": {**TEXT, "pattern": f"^(?!.*--){SESSION_ID.pattern}$"},
        "session_mode": {"enum": list(SESSION_MODES), "description": mode},
    }


def template_variables() -> Schema:
    """With messages only."""
    value = {"type": ["boolean", "number", "string"], "maxLength": VARIABLE_BYTES_MAX}
    names = {"pattern": f"^{VARIABLE.pattern}$", "not": {"enum": list(OWN_VARIABLES)}}
    return {
        "type": "object",
        "propertyNames": names,
        "additionalProperties": value,
        "maxProperties": VARIABLES_MAX,
        "description": "for the model's chat template, such as enable_thinking",
    }


def sampling() -> Schema:
    output = {"type": "integer", "minimum": 1, "description": "absent: all the context leaves"}
    return {
        "max_tokens": output,
        "max_completion_tokens": output,
        **{name: number(allowed) for name, allowed in RANGES.items()},
        "logprobs": {"anyOf": [number(LOGPROBS), {"type": "boolean"}]},
        "top_logprobs": number(LOGPROBS),
        "logit_bias": {
            "type": "object",
            "propertyNames": {"pattern": "^[0-9]{1,9}$"},
            "additionalProperties": number(BIAS),
            "maxProperties": BIASES_MAX,
        },
        "stop": {"anyOf": [STOP, {"type": "array", "items": STOP, "maxItems": STOP_MAX}]},
    }


def unsupported() -> Schema:
    """Only the values that ask for nothing are legal; False: no value is."""
    return {
        name: {"enum": list(harmless)} if harmless else False
        for name, (harmless, _) in UNSUPPORTED.items()
    }


def number(allowed: Range) -> Schema:
    """A number of this range."""
    low = "exclusiveMinimum" if allowed.above_low else "minimum"
    kind = "integer" if allowed.whole else "number"
    return {"type": kind, low: allowed.low, "maximum": allowed.high}
