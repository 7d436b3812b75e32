"""What becomes of each field of the Responses, the Messages and the Batches API: further cases of
test_conformance.py, and further tables of docs/openai.md."""

from typing import Any

from tests.ingest.conformance_field import HELLO, NUMBERS, PARAMETERS, Field, param

TOOL = {"type": "function", "name": "f", "parameters": PARAMETERS}
ANTHROPIC_TOOL = {"name": "f", "input_schema": PARAMETERS}
IMAGE = [{"role": "user", "content": [{"type": "input_image"}]}]
FORMAT = {"format": {"type": "json_schema", "name": "n", "schema": PARAMETERS}}
IS_SCHEMA = '"required": ["a"]'


def has_system(request: Any, answer: Any) -> bool:
    return len(request.token_ids) > 12 or request.messages[0]["role"] == "system"


SHARED = {
    "temperature": param("temperature", 0.5, (*NUMBERS, 2.1), "0 to 2; 0 is greedy"),
    "top_p": param("top_p", 0.5, (*NUMBERS, 0), "above 0, at most 1"),
    "metadata": Field(
        "honoured",
        {"a": "b"},
        "comes back with the job",
        lambda r, a: r.metadata == {"a": "b"},
        ("x", [1]),
    ),
    "model": Field(
        "honoured", "tiny", "the one that is served", lambda r, a: a["model"] == "tiny", ("x", 5)
    ),
    "stream": Field("honoured", True, "server-sent events", wrong=("yes", 1)),
}

RESPONSES = {
    **SHARED,
    "input": Field(
        "honoured",
        [{"role": "developer", "content": "Be kind"}, {"role": "user", "content": "Hello"}],
        "a text, or messages, function_call, function_call_output; text alone",
        lambda r, a: [m["role"] for m in r.messages] == ["system", "user"],
        (5, [], ([5], "input[0]"), (IMAGE, "input[0].content[0]")),
    ),
    "instructions": Field("honoured", "Be kind", "", has_system, (5,)),
    "max_output_tokens": Field(
        "honoured", 3, "", lambda r, a: r.params.max_tokens == 3, (*NUMBERS, 0, 10**9)
    ),
    "tools": Field(
        "honoured",
        [TOOL],
        "functions",
        lambda r, a: "<tool_call>" in r.grammar,
        ("x", ([5], "tools[0]"), ([{"type": "web_search"}], "tools[0].type")),
    ),
    "tool_choice": Field(
        "honoured",
        {"type": "function", "name": "f"},
        "none, auto, required, or a function",
        lambda r, a: "start: (calls)" in r.grammar,
        ("x", 5),
        (("tools", [TOOL]),),
    ),
    "parallel_tool_calls": Field(
        "honoured", False, "", lambda r, a: "call*" not in r.grammar, ("x",), (("tools", [TOOL]),)
    ),
    "text": Field(
        "honoured",
        FORMAT,
        "format: text, json_object, json_schema",
        lambda r, a: IS_SCHEMA in r.grammar,
        (5, ({"format": 5}, "text.format"), ({"format": {"type": "x"}}, "text.format")),
    ),
    "top_logprobs": Field(
        "honoured",
        2,
        "0 to 20",
        lambda r, a: len(a["output"][0]["content"][0]["logprobs"][0]["top_logprobs"]) == 2,
        (21, "x"),
    ),
    "include": Field(
        "honoured",
        ["message.output_text.logprobs"],
        "log probabilities; reasoning.encrypted_content is taken and holds nothing",
        lambda r, a: len(a["output"][0]["content"][0]["logprobs"]) == 4,
        (5, ["file_search_call.results"]),
    ),
    "reasoning": Field(
        "honoured",
        {"effort": "low"},
        "effort, where the chat template has a use for it",
        wrong=(5, ({"effort": "x"}, "reasoning.effort")),
    ),
    "previous_response_id": Field(
        "honoured",
        None,
        "what was said before, from its session; a second that follows the same one branches",
        lambda r, a: a["previous_response_id"] is None,
        (5, "resp_0"),
    ),
    "store": Field(
        "honoured",
        False,
        "true: kept as long as results are, and its session as sessions are",
        lambda r, a: r.session_id is None,
        ("x",),
    ),
    "background": Field(
        "honoured", True, "needs store", lambda r, a: a["status"] == "in_progress", ("x",)
    ),
    "truncation": Field(
        "honoured",
        "disabled",
        "disabled alone",
        lambda r, a: a["truncation"] == "disabled",
        ("auto",),
    ),
    "conversation": Field("refused", "conv_1", "use previous_response_id"),
    "prompt": Field("refused", {"id": "x"}),
    "context_management": Field("refused", [{"type": "compaction"}]),
    "moderation": Field("refused", {"model": "x"}),
    "image": Field("refused", {"x": 1}),
    **{
        name: Field("ignored", value)
        for name, value in {
            "access_programs": [],
            "background_options": {},
            "max_tool_calls": 3,
            "prompt_cache_key": "x",
            "prompt_cache_options": {},
            "prompt_cache_retention": "24h",
            "safety_identifier": "x",
            "service_tier": "auto",
            "stream_options": {"include_obfuscation": False},
            "user": "x",
        }.items()
    },
}

MESSAGES = {
    **SHARED,
    "messages": Field(
        "honoured",
        [*HELLO, {"role": "assistant", "content": "Yes?"}, *HELLO],
        "user, assistant, system; blocks text, tool_use, tool_result; the last is the user's",
        lambda r, a: len(r.token_ids) > 10,
        (
            "x",
            [],
            ([{"role": "x"}], "messages[0].role"),
            ([{"role": "user", "content": 5}], "messages[0].content"),
            ([*HELLO, {"role": "assistant", "content": "x"}], "messages[1].role"),
            (
                [{"role": "user", "content": [{"type": "image"}]}],
                "messages[0].content[0].type",
            ),
        ),
    ),
    "max_tokens": param("max_tokens", 3, (*NUMBERS, 0, 10**9, None), "required"),
    "system": Field("honoured", "Be kind", "a text, or text blocks", has_system, (5,)),
    "stop_sequences": Field(
        "honoured", ["a"], "up to 16", lambda r, a: r.params.stop == ("a",), ([5], ["x"] * 17)
    ),
    "top_k": param("top_k", 7, ("x", -2), "an extra of this node's, too"),
    "tools": Field(
        "honoured",
        [ANTHROPIC_TOOL],
        "tools of the client's own",
        lambda r, a: "<tool_call>" in r.grammar,
        ("x", ([5], "tools[0]"), ([{"type": "bash_20250124"}], "tools[0].type")),
    ),
    "tool_choice": Field(
        "honoured",
        {"type": "any", "disable_parallel_tool_use": True},
        "auto, any, tool, none; disable_parallel_tool_use",
        lambda r, a: "start: (calls)" in r.grammar and "call*" not in r.grammar,
        ((5, "tool_choice.type"), ({"type": "x"}, "tool_choice.type")),
        (("tools", [ANTHROPIC_TOOL]),),
    ),
    "output_config": Field(
        "honoured",
        {"format": {"type": "json_schema", "schema": PARAMETERS}, "effort": "low"},
        "format json_schema; effort, where the chat template has a use for it",
        lambda r, a: IS_SCHEMA in r.grammar,
        (5, ({"format": 5}, "output_config.format"), ({"effort": "x"}, "output_config.effort")),
    ),
    "thinking": Field(
        "honoured", {"type": "disabled"}, "disabled; else as the model does", wrong=(5,)
    ),
    "container": Field("refused", "x"),
    "mcp_servers": Field("refused", [{"url": "x"}]),
    "context_management": Field("refused", {"edits": []}),
    **{
        name: Field("ignored", value)
        for name, value in {
            "cache_control": {"type": "ephemeral"},
            "diagnostics": {},
            "inference_geo": "eu",
            "service_tier": "auto",
            "speed": "standard",
            "user_profile_id": "x",
            "workspace_id": "x",
        }.items()
    },
}

OTHERS: dict[str, tuple[dict[str, Any], dict[str, Field]]] = {
    "/v1/responses": ({"input": "Hello"}, RESPONSES),
    "/v1/messages": ({"messages": HELLO, "max_tokens": 8}, MESSAGES),
}
