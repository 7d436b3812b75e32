"""Messages become token ids, and a client cannot write control tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.text.template import TemplateError

CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
# what an attacker would send: control texts whole, broken, nested, beside private-use characters
HOSTILE = st.lists(
    st.sampled_from([*CONTROL, "<|im_", "end|>", "<", "|>", "a", "\n", "é", "😀", "\U000f0000"])
).map("".join)


def plain(model, token_ids):
    return b"".join(map(model.token_bytes, token_ids)).decode()


def control_ids(model, token_ids):
    known = {i for text in CONTROL for i in model.encode(text, special=True)}
    return [i for i in token_ids if i in known]


def test_recorded_chats_render_to_the_recorded_ids(default_text, golden):
    for chat in golden("smollm2_greedy.json")["chats"]:
        assert default_text.render(chat["messages"]) == chat["prompt_ids"]


@given(content=HOSTILE, role=HOSTILE)
def test_a_control_token_in_a_message_stays_text(tiny_text, content, role):
    """The control tokens are those of the empty message, and the text is unchanged."""
    ids = tiny_text.render([{"role": role, "content": content}])
    empty = tiny_text.render([{"role": "", "content": ""}])
    assert control_ids(tiny_text, empty) == control_ids(tiny_text, ids)
    assert plain(tiny_text, ids) == f"{role}\n{content}\nassistant\n"


@given(content=HOSTILE)
def test_a_plain_prompt_never_holds_control_tokens(tiny_text, content):
    ids = tiny_text.encode(content)
    assert control_ids(tiny_text, ids) == []
    assert plain(tiny_text, ids) == content


def test_control_tokens_of_trusted_text_are_parsed(tiny_text):
    ids = tiny_text.encode("<|im_start|>a<|im_end|>", special=True)
    assert len(control_ids(tiny_text, ids)) == 2


def test_a_list_of_text_parts_is_one_text(tiny_text):
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    whole = tiny_text.render([{"role": "user", "content": "Hello"}])
    assert tiny_text.render([{"role": "user", "content": parts}]) == whole


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user"},
        {"role": "user", "content": None},
        {"role": "user", "content": 5},
        {"role": "user", "content": [{"type": "image_url"}]},
        {"role": "user", "content": "\ud800"},
    ],
    ids=["nothing", "null", "number", "image", "surrogate"],
)
def test_messages_the_template_cannot_take_are_refused(tiny_text, message):
    with pytest.raises(TemplateError):
        tiny_text.render([message])


def test_an_unpaired_surrogate_in_a_prompt_is_refused(tiny_text):
    with pytest.raises(UnicodeEncodeError):
        tiny_text.encode("a\ud800")


def test_ids_past_the_vocabulary_print_nothing(tiny_text):
    assert tiny_text.token_bytes(10**6) == b""


def test_what_follows_a_call_does_not_repeat_it(tiny_text):
    call = {"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
    messages = [
        {"role": "user", "content": "Go"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "done"},
    ]
    assert "<tool_call>" in plain(tiny_text, tiny_text.render(messages))
    rest = plain(tiny_text, tiny_text.render_after(messages, 1))
    assert "done" in rest and "<tool_call>" not in rest
