"""What is wrong with a request, as tables: cases of test_admit.py, seeds of test_admit_fuzz.py."""

SCHEMA = "response_format.json_schema"


def function(name="f", **more):
    return {"type": "function", "function": {"name": name, **more}}


def schema_format(**given):
    return {"type": "json_schema", "json_schema": {"name": "n", "schema": {}, **given}}


def nested(depth):
    """A schema whose size is two to the depth."""
    inner = {"type": "string"}
    for _ in range(depth):
        inner = {"type": "object", "properties": {"a": inner, "b": inner}}
    return inner


def many(count):
    return {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(count)}}


def calling(name="f", arguments="{}", **more):
    call = {"type": "function", "function": {"name": name, "arguments": arguments}, **more}
    return {"role": "assistant", "tool_calls": [call]}


HOOK = "https://hooks.example.com/lockstep"
# Fields beside the prompt "Hello", the field that is named, a piece of the sentence, the code.
REFUSED = [
    ({"prompt": None}, "prompt", "exactly one of prompt, messages and token_ids", "bad_request"),
    ({"token_ids": [1]}, "prompt", "got prompt and token_ids", "bad_request"),
    ({"prompt": ""}, "prompt", "must not be empty", "bad_request"),
    ({"prompt": 5}, "prompt", "must be a string, got 5", "bad_request"),
    ({"prompt": b"ab"}, "prompt", "got 2 bytes", "bad_request"),
    ({"prompt": []}, "prompt", "got an empty list", "bad_request"),
    ({"prompt": ["a", "b"]}, "prompt", "must be a string", "bad_request"),
    ({"prompt": "a\udcff"}, "prompt", "valid UTF-8", "bad_request"),
    ({"prompt": "x " * 400}, "prompt", "context of 128", "context_length_exceeded"),
    ({"prompt": "x" * 5000}, "prompt", "5000 bytes", "context_length_exceeded"),
    ({"model": "gpt-4"}, "model", "must be 'tiny-llama'", "model_not_found"),
    ({"model": 4}, "model", "got 4", "model_not_found"),
    ({"v": 2}, "v", "must be 1, got 2", "bad_request"),
    ({"v": "1"}, "v", "must be 1", "bad_request"),
    ({"sla": "urgent"}, "sla", "realtime, standard, batch", "bad_request"),
    ({"sla": "batch"}, "sla", "absent or 'standard' on this stream", "bad_request"),
    ({"sla": ["standard"]}, "sla", "got a list of 1", "bad_request"),
    ({"deadline_ms": 0}, "deadline_ms", "from 1 to", "bad_request"),
    ({"deadline_ms": -1}, "deadline_ms", "got -1", "bad_request"),
    ({"deadline_ms": 1.5}, "deadline_ms", "an integer", "bad_request"),
    ({"deadline_ms": 2**62}, "deadline_ms", "from 1 to", "bad_request"),
    ({"max_tokens": 0}, "max_tokens", "got 0", "bad_request"),
    ({"max_tokens": -5}, "max_tokens", "got -5", "bad_request"),
    ({"max_tokens": 10**9}, "max_tokens", "got 1000000000", "bad_request"),
    ({"max_tokens": 2**200}, "max_tokens", "beyond 64 bits", "bad_request"),
    ({"max_tokens": "5"}, "max_tokens", "got '5'", "bad_request"),
    ({"max_tokens": 5.0}, "max_tokens", "got 5.0", "bad_request"),
    ({"max_tokens": True}, "max_tokens", "got true", "bad_request"),
    ({"max_completion_tokens": 0}, "max_completion_tokens", "got 0", "bad_request"),
    ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens", "must not differ", "bad_request"),
    ({"temperature": -0.1}, "temperature", "from 0 to 2", "bad_request"),
    ({"temperature": 2.1}, "temperature", "from 0 to 2", "bad_request"),
    ({"temperature": float("nan")}, "temperature", "got nan", "bad_request"),
    ({"temperature": float("inf")}, "temperature", "got inf", "bad_request"),
    ({"temperature": "warm"}, "temperature", "got 'warm'", "bad_request"),
    ({"temperature": False}, "temperature", "got false", "bad_request"),
    ({"top_p": 0}, "top_p", "above 0 and at most 1", "bad_request"),
    ({"top_p": 1.01}, "top_p", "at most 1", "bad_request"),
    ({"top_k": -2}, "top_k", "from -1 to", "bad_request"),
    ({"top_k": 1.0}, "top_k", "an integer", "bad_request"),
    ({"min_p": 1.5}, "min_p", "from 0 to 1", "bad_request"),
    ({"presence_penalty": 3}, "presence_penalty", "from -2 to 2", "bad_request"),
    ({"frequency_penalty": -3}, "frequency_penalty", "from -2 to 2", "bad_request"),
    ({"repetition_penalty": 1e-9}, "repetition_penalty", "0.01", "bad_request"),
    ({"seed": -1}, "seed", "from 0 to 18446744073709551615", "bad_request"),
    ({"seed": 2**64}, "seed", "from 0 to", "bad_request"),
    ({"seed": 1.5}, "seed", "an integer", "bad_request"),
    ({"logprobs": 21}, "logprobs", "from 0 to 20", "bad_request"),
    ({"logprobs": -1}, "logprobs", "from 0 to 20", "bad_request"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "from 0 to 20", "bad_request"),
    ({"top_logprobs": 3}, "top_logprobs", "needs logprobs", "bad_request"),
    ({"stop": ""}, "stop", "1 to 256 characters", "bad_request"),
    ({"stop": ["a", ""]}, "stop[1]", "1 to 256 characters", "bad_request"),
    ({"stop": ["a", 5]}, "stop[1]", "got 5", "bad_request"),
    ({"stop": 5}, "stop", "a string or a list of strings", "bad_request"),
    ({"stop": {"a": 1}}, "stop", "got a map", "bad_request"),
    ({"stop": ["a"] * 17}, "stop", "at most 16", "bad_request"),
    ({"stop": "x" * 257}, "stop", "got 257", "bad_request"),
    ({"stop": "\udc80"}, "stop", "valid UTF-8", "bad_request"),
    ({"webhook": HOOK}, "webhook", "must be a map", "bad_request"),
    ({"webhook": {}}, "webhook.url", "must be a string", "bad_request"),
    ({"webhook": {"url": 5}}, "webhook.url", "got 5", "bad_request"),
    ({"webhook": {"url": "ftp://a.example"}}, "webhook.url", "https://", "bad_request"),
    ({"webhook": {"url": "https://169.254.169.254/"}}, "webhook.url", "not public", "bad_request"),
    ({"webhook": {"url": HOOK, "events": "failed"}}, "webhook.events", "a list", "bad_request"),
    ({"webhook": {"url": HOOK, "events": ["done"]}}, "webhook.events", "a list", "bad_request"),
    ({"webhook": {"url": HOOK, "events": [[]]}}, "webhook.events", "a list", "bad_request"),
    ({"webhook": {"url": HOOK, "secret_id": ""}}, "webhook.secret_id", "1 to 64", "bad_request"),
    ({"webhook_url": "http://[::1]/"}, "webhook_url", "not public", "bad_request"),
    ({"webhook_url": "https://10.1.2.3/"}, "webhook_url", "not public", "bad_request"),
    ({"webhook_url": HOOK, "webhook": {"url": HOOK}}, "webhook", "not both", "bad_request"),
    (
        {"chat_template_kwargs": {"enable_thinking": False}},
        "chat_template_kwargs",
        "goes with messages only",
        "bad_request",
    ),
    ({"chat_template_kwargs": 5}, "chat_template_kwargs", "must be a map", "bad_request"),
    ({"chat_template_kwargs": {"A": 1}}, "chat_template_kwargs", "got 'A'", "bad_request"),
    ({"chat_template_kwargs": {"tools": 1}}, "chat_template_kwargs", "got 'tools'", "bad_request"),
    ({"chat_template_kwargs": {"a": None}}, "chat_template_kwargs.a", "a number", "bad_request"),
    (
        {"chat_template_kwargs": {"a": "x" * 1025}},
        "chat_template_kwargs.a",
        "a text of 1024 bytes",
        "bad_request",
    ),
    ({"metadata": "x"}, "metadata", "must be a map", "bad_request"),
    ({"metadata": {"a": "x" * 17000}}, "metadata", "at most 16384 bytes", "bad_request"),
    ({"metadata": {"a": b"x"}}, "metadata['a']", "must be JSON", "bad_request"),
    ({"metadata": {"a": [2**64]}}, "metadata['a'][0]", "64 bits", "bad_request"),
    ({"metadata": {"a": float("nan")}}, "metadata['a']", "must be JSON", "bad_request"),
    ({"metadata": {5: 1}}, "a key of metadata", "must be a string", "bad_request"),
    ({"metadata": {"a": "\udcff"}}, "metadata['a']", "valid UTF-8", "bad_request"),
    ({"n": 2}, "n", "a request for each answer", "unsupported"),
    ({"best_of": 3}, "best_of", "a request for each answer", "unsupported"),
    *[
        ({"session_id": name}, "session_id", "1 to 64 of A-Z, a-z, 0-9, _ and -", "bad_request")
        for name in ("", "../s", "a/b", "..", "a.b", "a--b", "a\nb", "a" * 65, "ä", "a b", 7, ["a"])
    ],
    ({"session_mode": "append"}, "session_mode", "goes with session_id only", "bad_request"),
    *[
        (
            {"session_id": "s", "session_mode": mode},
            "session_mode",
            "append, history",
            "bad_request",
        )
        for mode in ("", "replace", 5, ["append"])
    ],
    *[
        ({"tools": tools}, field, sentence, "bad_request")
        for tools, field, sentence in (
            ("f", "tools", "must be a list of tools"),
            (["f"], "tools[0]", "must be 'function'"),
            ([{"type": "web_search"}], "tools[0].type", "no other tools"),
            ([{"type": "function"}], "tools[0].function", "name and parameters, got null"),
            ([{"type": "function", "function": {}}], "tools[0].function.name", "got null"),
            ([function(name="a b")], "tools[0].function.name", "got 'a b'"),
            ([function(name="x" * 65)], "tools[0].function.name", "1 to 64"),
            ([function(description=5)], "tools[0].function.description", "must be a string"),
            ([function(parameters="x")], "tools[0].function.parameters", "a JSON Schema"),
            ([function(strict="x")], "tools[0].function.strict", "true or false"),
            ([function(), function()], "tools[1].function.name", "given once"),
            ([function(name=f"f{n}") for n in range(129)], "tools", "at most 128"),
        )
    ],
    ({"tools": [function(parameters={"type": "x"})]}, "tools", "Invalid type: x", "unsupported"),
    ({"tool_choice": "required"}, "tool_choice", "needs tools", "bad_request"),
    ({"tool_choice": "always"}, "tool_choice", "none, auto, required", "bad_request"),
    ({"tool_choice": 5}, "tool_choice", "got 5", "bad_request"),
    ({"tool_choice": {"type": "function"}}, "tool_choice", "{name}", "bad_request"),
    (
        {"tools": [function()], "tool_choice": {"type": "function", "function": {"name": "g"}}},
        "tool_choice.function.name",
        "one of the tools, got 'g'",
        "bad_request",
    ),
    ({"parallel_tool_calls": "no"}, "parallel_tool_calls", "true or false", "bad_request"),
    *[
        ({"response_format": value}, field, sentence, code)
        for value, field, sentence, code in (
            ("json", "response_format", "got 'json'", "bad_request"),
            (
                {"type": "xml"},
                "response_format",
                "json_object, json_schema, got 'xml'",
                "bad_request",
            ),
            ({"type": "json_schema"}, f"{SCHEMA}", "a map with name and schema", "bad_request"),
            (schema_format(name="a b"), f"{SCHEMA}.name", "got 'a b'", "bad_request"),
            (schema_format(strict=1), f"{SCHEMA}.strict", "true or false", "bad_request"),
            (schema_format(schema=None), f"{SCHEMA}.schema", "a JSON Schema", "bad_request"),
            (schema_format(schema={"type": 5}), "response_format", "cannot be", "unsupported"),
            (
                schema_format(schema={"not": {}}, strict=True),
                "response_format",
                "Unimplemented",
                "unsupported",
            ),
            (schema_format(schema={"$ref": "#"}), "response_format", "nothing", "unsupported"),
            (schema_format(schema=nested(14)), "response_format", "at most 65536", "unsupported"),
            (schema_format(schema=many(1000)), "response_format", "at most 900", "unsupported"),
        )
    ],
    ({"grammar": 5}, "grammar", "must be a string", "bad_request"),
    ({"grammar": "start: ("}, "grammar", "cannot be enforced", "unsupported"),
    ({"grammar": "x", "tools": []}, "grammar", "does not go with tools", "bad_request"),
    ({"reasoning_effort": "extreme"}, "reasoning_effort", "none, minimal", "bad_request"),
    ({"logit_bias": 5}, "logit_bias", "must be a map", "bad_request"),
    ({"logit_bias": {"x": 1}}, "logit_bias", "token ids from 0 to 511", "bad_request"),
    ({"logit_bias": {"512": 1}}, "logit_bias", "token ids from 0 to 511", "bad_request"),
    ({"logit_bias": {"5": 101}}, "logit_bias.5", "from -100 to 100", "bad_request"),
    ({"logit_bias": {str(n): 1 for n in range(2000)}}, "logit_bias", "at most", "bad_request"),
    ({"choice": 128}, "choice", "from 0 to 127", "bad_request"),
    ({"functions": [{}]}, "functions", "use tools", "unsupported"),
    ({"function_call": "f"}, "function_call", "use tools", "unsupported"),
    ({"modalities": ["audio"]}, "modalities", "['text']", "unsupported"),
    ({"audio": {}}, "audio", "not offered", "unsupported"),
    ({"web_search_options": {}}, "web_search_options", "not offered", "unsupported"),
    ({"moderation": {}}, "moderation", "not offered", "unsupported"),
    ({"echo": True}, "echo", "/v1/completions only", "unsupported"),
    ({"suffix": "end"}, "suffix", "not offered", "unsupported"),
]

WRONG_MESSAGES = [
    ([], "messages", "at least one message"),
    ("Hello", "messages", "at least one message"),
    ({"role": "user"}, "messages", "got a map"),
    (["Hello"], "messages[0]", "role and content"),
    ([{"content": "x"}], "messages[0].role", "system, developer, user, assistant, tool"),
    ([{"role": "wizard", "content": "x"}], "messages[0].role", "got 'wizard'"),
    ([{"role": "tool", "content": "x"}], "messages[0].tool_call_id", "is required"),
    ([{"role": "assistant", "tool_calls": 5}], "messages[0].tool_calls", "a list of at most 128"),
    (
        [{"role": "assistant", "tool_calls": [{}]}],
        "messages[0].tool_calls[0]",
        "id, type and function",
    ),
    ([calling(type="x")], "messages[0].tool_calls[0].type", "must be 'function'"),
    ([calling(id=5)], "messages[0].tool_calls[0].id", "must be a string"),
    ([calling(name=None)], "messages[0].tool_calls[0].function.name", "must be a string"),
    ([calling(arguments="{")], "messages[0].tool_calls[0].function.arguments", "a JSON object"),
    ([calling(arguments="[1]")], "messages[0].tool_calls[0].function.arguments", "a JSON object"),
    (
        [{"role": "assistant", "content": "x", "function_call": {"name": "f"}}],
        "messages[0].function_call",
        "use tool_calls",
    ),
    ([{"role": "user", "content": "x", "name": 5}], "messages[0].name", "must be a string"),
    ([{"role": "assistant"}], "messages[0].content", "a string or a list"),
    ([{"role": "user"}], "messages[0].content", "a string or a list of text parts"),
    ([{"role": "user", "content": 5}], "messages[0].content", "got 5"),
    ([{"role": "user", "content": "a\ud800"}], "messages[0].content", "valid UTF-8"),
    ([{"role": "user", "content": ["x"]}], "messages[0].content[0]", "type and text"),
    (
        [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}],
        "messages[0].content[0]",
        "images, audio and files are not offered",
    ),
    (
        [{"role": "user", "content": [{"type": "text", "text": 5}]}],
        "messages[0].content[0].text",
        "must be a string",
    ),
    ([{"role": "user", "content": "x"}] * 200, "messages", "fewer than 128"),
    ([{"role": "user", "content": "x " * 300}], "messages", "context of 128"),
    ([{"role": "user", "content": "x" * 9000}], "messages", "9000 bytes"),
]
