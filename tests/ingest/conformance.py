"""What becomes of each field of OpenAI's endpoints: the cases of test_conformance.py, and the table
in docs/openai.md, which is made of them.

    python -m tests.ingest.conformance      writes the table
"""

from pathlib import Path
from typing import Any

from tests.ingest.conformance_field import HELLO, NUMBERS, PARAMETERS, Field, param
from tests.ingest.conformance_others import OTHERS

PAGE = Path(__file__).parents[2] / "docs" / "openai.md"
MARK = "<!-- made by tests/ingest/conformance.py; the lines below are what its tests say -->\n"

TOOL = {"type": "function", "function": {"name": "f", "parameters": PARAMETERS}}
NAMED = {"type": "function", "function": {"name": "f"}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "n", "schema": PARAMETERS}}

SAMPLING = {
    "frequency_penalty": param("frequency_penalty", 0.5, (*NUMBERS, 3), "-2 to 2"),
    "presence_penalty": param("presence_penalty", 0.5, (*NUMBERS, -3), "-2 to 2"),
    "temperature": param("temperature", 0.5, (*NUMBERS, 2.1), "0 to 2; 0 is greedy"),
    "top_p": param("top_p", 0.5, (*NUMBERS, 0), "above 0, at most 1"),
    "seed": param("seed", 5, (*NUMBERS, -1, 1.5), "absent: made of the request's id"),
    "max_tokens": param("max_tokens", 3, (*NUMBERS, 0, 10**9, 1.5)),
    "logit_bias": Field(
        "honoured",
        {"7": -100},
        "at most 1024 token ids",
        lambda r, a: r.params.logit_bias == ((7, -100.0),),
        ("x", {"a": 1}, ({"7": 101}, "logit_bias.7"), ({"7": "x"}, "logit_bias.7")),
    ),
    "n": Field(
        "honoured",
        2,
        "1 to 128 choices, over all prompts; each is a request of its own",
        lambda r, a: len(a["choices"]) == 2,
        ("x", 0, 129, True, 1.5),
    ),
    "stop": Field(
        "honoured",
        ["a", "b"],
        "a text, or up to 16",
        lambda r, a: r.params.stop == ("a", "b"),
        (5, "", "x" * 257, ["x"] * 17, (["a", 5], "stop[1]")),
    ),
    "stream": Field("honoured", True, "server-sent events", wrong=("yes", 1)),
    "stream_options": Field(
        "honoured",
        {"include_usage": True},
        "include_usage; needs stream",
        wrong=("x", ({"include_usage": "x"}, "stream_options.include_usage")),
        beside=(("stream", True),),
    ),
    "user": Field("ignored", "somebody"),
    "model": Field(
        "honoured", "tiny", "the one that is served", lambda r, a: a["model"] == "tiny", ("x", 5)
    ),
}

CHAT = {
    **SAMPLING,
    "messages": Field(
        "honoured",
        [{"role": "developer", "content": [{"type": "text", "text": "Be kind"}]}, *HELLO],
        "system, developer, user, assistant, tool, function; parts of type text",
        lambda r, a: len(r.token_ids) > 10,
        (
            "x",
            [],
            ([{"role": "x", "content": "x"}], "messages[0].role"),
            ([{"role": "user", "content": 5}], "messages[0].content"),
            ([{"role": "user", "content": [{"type": "image_url"}]}], "messages[0].content[0]"),
            ([{"role": "tool", "content": "x"}], "messages[0].tool_call_id"),
            ([{"role": "assistant", "tool_calls": [5]}], "messages[0].tool_calls[0]"),
        ),
    ),
    "max_completion_tokens": Field(
        "honoured", 3, "", lambda r, a: r.params.max_tokens == 3, (0, "x", 10**9)
    ),
    "logprobs": Field(
        "honoured", True, "", lambda r, a: bool(a["choices"][0]["logprobs"]["content"]), ("x", 21)
    ),
    "top_logprobs": Field(
        "honoured",
        2,
        "0 to 20; needs logprobs",
        lambda r, a: len(a["choices"][0]["logprobs"]["content"][0]["top_logprobs"]) == 2,
        (21, -1, "x"),
        (("logprobs", True),),
    ),
    "tools": Field(
        "honoured",
        [TOOL],
        "functions; told in any template; names and arguments are enforced",
        lambda r, a: "<tool_call>" in r.grammar,
        (
            "x",
            [TOOL, *[TOOL] * 128],
            ([5], "tools[0]"),
            ([{"type": "custom"}], "tools[0].type"),
            ([{"type": "function", "function": {"name": "a b"}}], "tools[0].function.name"),
            ([TOOL, TOOL], "tools[1].function.name"),
        ),
    ),
    "tool_choice": Field(
        "honoured",
        NAMED,
        "none, auto, required, or a function",
        lambda r, a: "start: (calls)" in r.grammar,
        ("x", 5, ({"type": "function", "function": {"name": "g"}}, "tool_choice.function.name")),
        (("tools", [TOOL]),),
    ),
    "parallel_tool_calls": Field(
        "honoured",
        False,
        "",
        lambda r, a: "call*" not in r.grammar,
        ("x", 1),
        (("tools", [TOOL]),),
    ),
    "response_format": Field(
        "honoured",
        SCHEMA,
        "text, json_object, json_schema (strict, or what can be enforced of it)",
        lambda r, a: '"required": ["a"]' in r.grammar,
        (
            "x",
            {"type": "x"},
            ({"type": "json_schema"}, "response_format.json_schema"),
            (
                {"type": "json_schema", "json_schema": {"schema": 5}},
                "response_format.json_schema.schema",
            ),
        ),
    ),
    "reasoning_effort": Field(
        "honoured", "low", "where the chat template has a use for it", wrong=("x", 5)
    ),
    "metadata": Field(
        "honoured",
        {"a": "b"},
        "comes back with the job",
        lambda r, a: r.metadata == {"a": "b"},
        ("x", [1]),
    ),
    "modalities": Field("honoured", ["text"], "text alone", wrong=(["audio"], "x")),
    "functions": Field("refused", [{"name": "f"}], "use tools"),
    "function_call": Field("refused", {"name": "f"}, "use tool_choice"),
    "audio": Field("refused", {"voice": "x"}),
    "web_search_options": Field("refused", {}),
    "moderation": Field("refused", {"model": "x"}),
    "prediction": Field("ignored", {"type": "content", "content": "x"}, "it changes no answer"),
    "prompt_cache_key": Field("ignored", "x", "prefixes are found by what they hold"),
    "prompt_cache_options": Field("ignored", {}),
    "prompt_cache_retention": Field("ignored", "24h"),
    "safety_identifier": Field("ignored", "x"),
    "service_tier": Field("ignored", "auto", "the class is `sla`"),
    "store": Field("ignored", True, "answers are kept as jobs are"),
    "verbosity": Field("ignored", "low"),
}

COMPLETIONS = {
    **SAMPLING,
    "prompt": Field(
        "honoured",
        ["Hello", [5, 6]],
        "a text, token ids, or a list of these",
        lambda r, a: len(a["choices"]) == 2,
        (5, "", [], ([5, -1], "prompt[1]")),
    ),
    "logprobs": Field(
        "honoured",
        2,
        "0 to 20",
        lambda r, a: len(a["choices"][0]["logprobs"]["top_logprobs"][0]) == 3,
        (21, -1, "x"),
    ),
    "echo": Field(
        "honoured",
        True,
        "not with logprobs",
        lambda r, a: a["choices"][0]["text"].startswith("Hello"),
        ("x", 1),
    ),
    "best_of": Field("refused", 2, "other than n"),
    "suffix": Field("refused", "end"),
}

TOKENIZE = {
    "model": Field("honoured", "tiny", "", lambda r, a: a["count"] > 0, ("x",)),
    "prompt": Field("honoured", "Hello", "or messages", lambda r, a: a["count"] > 0, (5, "")),
    "messages": Field(
        "honoured",
        HELLO,
        "as the chat template writes them",
        lambda r, a: a["count"] > 5,
        ([], "x"),
        (("prompt", None),),
    ),
    "tools": Field(
        "honoured",
        [TOOL],
        "",
        lambda r, a: a["count"] > 50,
        ("x",),
        (("messages", HELLO), ("prompt", None)),
    ),
}
DETOKENIZE = {
    "model": Field("honoured", "tiny", "", lambda r, a: "prompt" in a, ("x",)),
    "tokens": Field(
        "honoured", [5, 6], "", lambda r, a: "prompt" in a, ("x", [], ([1, -1], "tokens[1]"))
    ),
}

# endpoint: (what it requires, its fields)
ENDPOINTS: dict[str, tuple[dict[str, Any], dict[str, Field]]] = {
    "/v1/chat/completions": ({"messages": HELLO}, CHAT),
    "/v1/completions": ({"prompt": "Hello"}, COMPLETIONS),
    "/v1/tokenize": ({"prompt": "Hello"}, TOKENIZE),
    "/v1/detokenize": ({"tokens": [5]}, DETOKENIZE),
    **OTHERS,
}


def table() -> str:
    """The page's tables, in Markdown."""
    parts = []
    for endpoint, (_, fields) in ENDPOINTS.items():
        rows = [f"| `{name}` | {f.verdict} | {f.note} |" for name, f in sorted(fields.items())]
        head = [f"\n## POST {endpoint}\n", "| field | | |", "|---|---|---|"]
        parts.append("\n".join([*head, *rows, ""]))
    return "".join(parts)


def page() -> str:
    """The whole page: what people wrote, and then the tables."""
    return PAGE.read_text().partition(MARK)[0] + MARK + table()


if __name__ == "__main__":
    PAGE.write_text(page())
