"""A session's next prompt begins with its log, token by token, as long as both say the same."""

import json
import lzma
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kv_tier.chain import common_length
from kv_tier.manifest import Manifest, Message
from workers.model import catalog
from workers.model.gguf_file import GgufFile
from workers.session.compose import (
    ComposeError,
    compose,
    turn_after,
    with_prompt,
)
from workers.text.stream import TextStream
from workers.text.text_model import CARD, TOKENIZER, TextModel
from workers.text.vocabulary import build_tokenizer, text_card
from workers.wire import Request, SamplingParams

GOLDEN = Path(__file__).parents[2] / "golden"
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TEMPLATES = {
    "chatml": CHATML,
    "thoughts": (GOLDEN / "chat_template_qwen35.jinja").read_text("utf-8"),
    "trimmed": CHATML.replace("m.content", "m.content | trim"),
    "with bos": "{{ bos_token }}" + CHATML,
    "no control": (
        "{% for m in messages %}{{ m.role ~ ': ' ~ m.content ~ '\n' }}{% endfor %}assistant:"
    ),
    "spaced end": (
        "{% for m in messages %}{% if m.role == 'assistant' %}{{ ' ' ~ m.content ~ ' <|im_end|>' }}"
        "{% else %}{{ '[INST] ' ~ m.content ~ ' [/INST]' }}{% endif %}{% endfor %}"
    ),
    "alternating": (
        "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('roles must alternate') }}{% endif %}{% endfor %}" + CHATML
    ),
    "last only": (
        "{% for m in messages[-1:] %}{{ '<|im_start|>' + m.content + '<|im_end|>\n' }}"
        "{% endfor %}<|im_start|>"
    ),
}
NEVER_WHOLE = ("last only",)  # templates that forget earlier turns


def text_model(folder, template=None, **changes):
    """The text side in folder, perhaps with another template."""
    card = json.loads((folder / CARD).read_text("utf-8"))
    card["context_length"] = 100_000
    card["text"] |= changes | ({} if template is None else {"template": template})
    return TextModel("m", card, TextModel.load(folder)._tokenizer)


@pytest.fixture(scope="session")
def texts(tiny_home, model_home, tmp_path_factory):
    """Text sides by name: real models, and tiny_llama with each template."""
    tiny = catalog.folder_of(tiny_home, "tiny_llama")
    made = {name: text_model(tiny, template) for name, template in TEMPLATES.items()}
    made["bos added"] = text_model(tiny, CHATML, add_bos=True, bos_id=1)
    made["smollm2"] = text_model(catalog.folder_of(model_home, "smollm2-135m"))
    made["qwen35"] = qwen35(tmp_path_factory.mktemp("qwen35"))
    return made


def qwen35(folder):
    """The real vocabulary with the real template."""
    path = folder / "vocab.gguf"
    path.write_bytes(lzma.decompress((GOLDEN / "vocab_qwen35.gguf.xz").read_bytes()))
    fields = dict(GgufFile(path).fields)
    fields["tokenizer.chat_template"] = TEMPLATES["thoughts"]
    size = len(fields["tokenizer.ggml.tokens"])
    card = {"context_length": 8, "vocab_size": size, "weights_digest": ""}
    (folder / TOKENIZER).write_text(build_tokenizer(fields).to_str(), "utf-8")
    (folder / CARD).write_text(json.dumps(card | {"text": text_card(fields, size)}), "utf-8")
    return text_model(folder)


NAMES = [*TEMPLATES, "bos added", "smollm2", "qwen35"]


def user(content):
    return {"role": "user", "content": content}


def assistant(content):
    return {"role": "assistant", "content": content}


def request(*messages, mode="", **changes):
    fields = {
        "model": "m",
        "token_ids": (),
        "arrival_ms": 0,
        "params": SamplingParams(max_tokens=8),
    }
    return Request(
        id="r", session_id="s", session_mode=mode, messages=messages, **(fields | changes)
    )


def manifest(token_ids, messages, generation=1):
    return Manifest(
        tenant="default",
        session_id="s",
        generation=generation,
        fence=generation,
        fingerprint=bytes(32),
        model="m",
        weights_digest="w",
        arithmetic_version="1",
        created_ms=1,
        used_ms=1,
        token_ids=tuple(token_ids),
        messages=tuple(messages),
    )


def shown_text(text, ids):
    stream = TextStream(text, ())
    return "".join(map(stream.push, ids)) + stream.flush()


def answered(text, turn, ids, end_id=None):
    """The log after a turn whose answer is these ids; end_id None: it was cut by length."""
    messages = turn_after(turn, ids, shown_text(text, ids))
    end = [] if end_id is None else [end_id]
    log = manifest([*turn.token_ids, *ids, *end], messages)
    assert log.fault() == ""
    return log


def talk(text, *contents, end_id=None, answer="Yes."):
    """The log after as many turns as contents, each appended."""
    log = None
    end_id = min(text.end_ids) if end_id is None else end_id
    for content in contents:
        turn = compose(request(user(content), mode="append"), log, text)
        log = answered(text, turn, text._encode_plain(answer), end_id)
    return log


def told(log):
    """What a client that sends all of it back sends."""
    return [{"role": m.role, "content": m.content} for m in log.messages]


# --- the property ---


WORDS = st.sampled_from(
    ["", " ", "Hi", "<|im_end|>", "<|im_start|>assistant\n", "é\u200d🦙", "\n\n", "<think>", "a  b"]
)
CONTENT = st.lists(WORDS, max_size=4).map("".join)
TURN = st.tuples(
    CONTENT,
    st.sampled_from(["append", "history", "append unsaid", "history unsaid"]),
    st.lists(st.integers(0, 2**31), max_size=12),
    st.sampled_from(["stop", "other stop", "length"]),
)


def plain_ids(text, numbers):
    """Ids that print something, for these numbers."""
    ids = [number % text.vocab_size for number in numbers]
    hidden = text.end_ids | text.hidden_ids
    return [i for i in ids if i not in hidden and b"think" not in text.token_bytes(i)]


def asked(log, content, how, system):
    """The request of one turn: only what is new, or all of it."""
    mode, _, unsaid = how.partition(" ")
    if log is None:
        return request(*([system] if system else []), user(content), mode=mode)
    first = (log.messages[0].role, log.messages[0].content)
    if mode == "append":
        clear = first == ("user", content)
        return request(user(content), mode="append" if clear or not unsaid else "")
    return request(*told(log), user(content), mode="" if unsaid else mode)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in NEVER_WHOLE])
@given(turns=st.lists(TURN, min_size=2, max_size=5), has_system=st.booleans())
@settings(max_examples=40)
def test_the_next_prompt_begins_with_the_log(texts, name, turns, has_system):
    text, log, ends = texts[name], None, sorted(texts[name].end_ids)
    system = {"role": "system", "content": "Be kind."} if has_system else None
    if name == "alternating":
        system = None
    for content, how, numbers, ending in turns:
        before = list(log.token_ids) if log else []
        turn = compose(asked(log, content, how, system), log, text)
        assert turn.token_ids[: len(before)] == before
        assert (turn.common, turn.forked_at) == (len(before), None)
        assert len(turn.token_ids) > len(before)
        end_id = {"stop": ends[0], "other stop": ends[-1], "length": None}[ending]
        ids = plain_ids(text, numbers)
        log = answered(text, turn, ids or ([5] if end_id is None else []), end_id)


@pytest.mark.parametrize("name", NAMES)
def test_both_ways_to_go_on_give_the_same_prompt(texts, name):
    text = texts[name]
    log = talk(text, "Hello", "Go on")
    if name in NEVER_WHOLE:
        pytest.skip("such a template has no history")
    appended = compose(request(user("More"), mode="append"), log, text)
    whole = compose(request(*told(log), user("More"), mode="history"), log, text)
    assert appended == whole


@pytest.mark.parametrize("name", NAMES)
def test_a_composed_request_keeps_its_prompt(texts, name):
    """A take-over, or an answer that is verified, must see the same tokens."""
    text = texts[name]
    log = talk(text, "Hello")
    first = request(user("More"))
    turn = compose(first, log, text)
    again = compose(with_prompt(first, turn, 10_000), log, text)
    assert again == turn


@pytest.mark.parametrize("name", NAMES)
def test_a_first_turn_is_what_it_is_without_a_session(texts, name):
    text = texts[name]
    messages = [user("Hello <|im_end|>")]
    turn = compose(request(*messages), None, text)
    assert turn.token_ids == text.render(messages)
    assert (turn.common, turn.forked_at) == (0, None)


@pytest.mark.parametrize("name", ["chatml", "smollm2", "trimmed"])
def test_where_the_model_writes_what_the_template_would_nothing_is_different(texts, name):
    """The ids are those that the whole conversation has without a session."""
    text = texts[name]
    end_id = text.render_after([user("x")], 0)[0]  # the template's own
    log = talk(text, "Hello", "Go on", end_id=end_id)
    messages = [*told(log), user("More")]
    assert compose(request(*messages), log, text).token_ids == text.render(messages)


def test_what_the_model_wrote_is_not_tokenised_again(texts):
    """Ids that no tokenizer would give for their text stay."""
    text = texts["smollm2"]
    turn = compose(request(user("Hello")), None, text)
    bytes_of_word = [text._encode_plain(letter)[0] for letter in "the"]
    assert text._encode_plain("the") != bytes_of_word
    log = answered(text, turn, bytes_of_word, None)
    following = compose(request(*told(log), user("More")), log, text)
    assert following.token_ids[: len(log.token_ids)] == list(log.token_ids)


# --- the end of an answer ---


def after(text, ids, end_id):
    log = answered(text, compose(request(user("Hi")), None, text), ids, end_id)
    turn = compose(request(user("More"), mode="append"), log, text)
    return turn.token_ids[len(log.token_ids) - 1 :]


def test_an_end_that_the_model_wrote_is_not_written_again(texts):
    text = texts["chatml"]
    [end_id] = text._encode("<|im_end|>", text._control_pattern)
    newline = text._encode_plain("\n")
    assert after(text, [70, 71], end_id)[: 1 + len(newline)] == [end_id, *newline]


def test_an_answer_cut_by_length_is_ended_by_the_template(texts):
    text = texts["chatml"]
    [end_id] = text._encode("<|im_end|>", text._control_pattern)
    assert after(text, [70, 71], None)[:2] == [71, end_id]


def test_spaces_before_an_end_that_is_there_go_with_it(texts):
    text = texts["spaced end"]
    [end_id] = text._encode("<|im_end|>", text._control_pattern)
    assert after(text, [70, 71], end_id).count(end_id) == 1


def test_an_empty_answer_is_an_answer(texts):
    text = texts["chatml"]
    log = answered(text, compose(request(user("Hi")), None, text), [], min(text.end_ids))
    turn = compose(request(*told(log), user("More")), log, text)
    assert turn.forked_at is None
    assert turn.messages[1] == log.messages[1]


# --- what the messages are ---


@pytest.mark.parametrize(
    ("messages", "mode", "is_whole"),
    [
        ([user("Hello"), assistant("Yes."), user("More")], "", True),
        ([user("Hello"), user("More")], "", True),
        ([{"role": "system", "content": "x"}, user("More")], "", True),
        ([assistant("x"), user("More")], "", True),
        ([user("More")], "", False),
        ([user("More"), user("Hello")], "", False),
        ([user("Hello"), assistant("Yes."), user("More")], "append", False),
        ([user("More")], "history", True),
    ],
)
def test_a_history_is_told_from_what_is_new(texts, messages, mode, is_whole):
    """DESIGN section 8: a system or assistant message, or the session's first message."""
    log = talk(texts["chatml"], "Hello")
    turn = compose(request(*messages, mode=mode), log, texts["chatml"])
    assert len(turn.messages) == len(messages) + (0 if is_whole else 2)


# --- histories that diverge ---


def test_a_changed_answer_ends_the_part_in_common(texts):
    text = texts["chatml"]
    log = talk(text, "Hello", "Go on")
    second = log.messages[3]
    messages = told(log)
    messages[3] = assistant("No.")
    turn = compose(request(*messages, user("More")), log, text)
    assert turn.forked_at == turn.common == second.begin
    assert turn.token_ids[: turn.common] == list(log.token_ids[: turn.common])
    assert turn.messages[1] == log.messages[1]
    assert turn.messages[3] == Message("assistant", "No.")


def test_a_changed_question_ends_it_too(texts):
    text = texts["chatml"]
    log = talk(text, "Hello", "Go on")
    turn = compose(request(*told(log)[:2], user("Go away")), log, text)
    answer = log.messages[1]
    assert answer.end < turn.common < log.messages[3].begin
    assert turn.forked_at == turn.common


def test_an_answer_asked_for_again_begins_where_the_last_one_did(texts):
    text = texts["chatml"]
    log = talk(text, "Hello", "Go on")
    turn = compose(request(*told(log)[:3]), log, text)
    assert turn.forked_at == len(turn.token_ids) == log.messages[3].begin


def test_another_first_message_has_its_beginning_in_common(texts):
    text = texts["chatml"]
    log = talk(text, "Hello")
    turn = compose(request(user("Hello you"), mode="history"), log, text)
    assert turn.forked_at == common_length(list(log.token_ids), turn.token_ids) > 0
    assert turn.token_ids == text.render([user("Hello you")])


def test_thoughts_that_the_template_leaves_out_end_the_part_in_common(texts):
    """A history is what the template makes of it; what is appended goes on with the log."""
    text = texts["qwen35"]
    thoughtful = "They greet.\n</think>\n\nGood day."
    log = talk(text, "Hello", answer=thoughtful)
    turn = compose(request(*told(log), user("More")), log, text)
    begin = log.messages[1].begin
    assert log.messages[1].content == thoughtful
    assert turn.forked_at == turn.common < begin
    assert turn.token_ids == text.render([user("Hello"), assistant("Good day."), user("More")])
    assert turn.messages[1].end == 0
    appended = compose(request(user("More"), mode="append"), log, text)
    assert appended.forked_at is None


def test_a_template_that_forgets_earlier_turns_is_obeyed(texts):
    text = texts["last only"]
    log = talk(text, "Hello")
    turn = compose(request(*told(log), user("More")), log, text)
    assert turn.token_ids == text.render([user("More")])
    assert turn.forked_at == turn.common


# --- prompts that are no messages ---


def raw(*ids, mode="", **changes):
    return request(token_ids=ids, mode=mode, **changes)


def test_token_ids_begin_a_session_as_they_are(texts):
    turn = compose(raw(70, 71), None, texts["chatml"])
    assert turn.token_ids == [70, 71]
    assert turn.messages == (Message("prompt", ""),)


def test_token_ids_are_put_behind_the_log(texts):
    text = texts["bos added"]
    log = answered(text, compose(raw(1, 70), None, text), [80, 81])
    assert compose(raw(1, 72), log, text).token_ids == [1, 70, 80, 81, 72]
    assert compose(raw(72, mode="append"), log, text).forked_at is None


def test_token_ids_that_begin_with_the_log_are_the_whole(texts):
    text = texts["chatml"]
    log = answered(text, compose(raw(70), None, text), [80, 81])
    turn = compose(raw(70, 80, 81, 90), log, text)
    assert (turn.token_ids, turn.forked_at) == ([70, 80, 81, 90], None)
    assert turn.messages == (*log.messages, Message("prompt", ""))
    again = compose(raw(70, 80, 81, 90, mode="append"), log, text)
    assert again.token_ids == [70, 80, 81, 70, 80, 81, 90]


def test_token_ids_may_be_another_history(texts):
    text = texts["chatml"]
    log = answered(text, compose(raw(70), None, text), [80, 81])
    turn = compose(raw(70, 80, 99, mode="history"), log, text)
    assert (turn.token_ids, turn.forked_at) == ([70, 80, 99], 2)
    assert turn.messages == (Message("prompt", ""),)


@pytest.mark.parametrize("mode", ["", "append", "history"])
def test_composed_token_ids_stay(texts, mode):
    text = texts["chatml"]
    log = answered(text, compose(raw(70), None, text), [80, 81])
    first = raw(90, mode=mode)
    turn = compose(first, log, text)
    assert compose(with_prompt(first, turn, 100), log, text) == turn


def test_messages_follow_a_raw_prompt(texts):
    """There is no template to tell how it goes on: they are rendered by themselves."""
    text = texts["chatml"]
    log = answered(text, compose(raw(70), None, text), [80, 81])
    turn = compose(request(user("Hi")), log, text)
    assert turn.token_ids == [70, 80, 81, *text.render([user("Hi")])]


# --- what is refused ---


def test_what_the_template_refuses_is_said(texts):
    text = texts["alternating"]
    log = talk(text, "Hello")
    with pytest.raises(ComposeError, match=r"^messages: .*roles must alternate") as refused:
        compose(request(user("a"), user("b"), mode="append"), log, text)
    assert (refused.value.field, refused.value.code) == ("messages", "bad_request")


def test_a_conversation_longer_than_the_context_is_refused(texts, tiny_home):
    text = texts["chatml"]
    log = talk(text, "Hello", "Go on")
    small = text_model(catalog.folder_of(tiny_home, "tiny_llama"), CHATML)
    small.context_length = len(log.token_ids) + 3
    with pytest.raises(ComposeError, match=r"^messages: makes \d+ tokens with the") as refused:
        compose(request(user("More"), mode="append"), log, small)
    assert refused.value.code == "context_length_exceeded"


def test_max_tokens_is_what_the_pool_has_room_for(texts):
    asked = request(user("Hi"), params=SamplingParams(max_tokens=1000))
    turn = compose(asked, None, texts["chatml"])
    size = len(turn.token_ids)
    held = with_prompt(asked, turn, size + 7)
    assert (held.params.max_tokens, held.composed) == (7, True)
    assert held.token_ids == tuple(turn.token_ids)
    assert with_prompt(asked, turn, 10_000).params == asked.params
    with pytest.raises(ComposeError, match="this pool has") as refused:
        with_prompt(asked, turn, size)
    assert refused.value.code == "too_large"


def test_a_request_survives_the_wire_composed(texts):
    asked = request(user("é🦙"), variables={"enable_thinking": False})
    composed = with_prompt(asked, compose(asked, None, texts["qwen35"]), 1000)
    packed = msgspec.msgpack.encode(composed)
    assert msgspec.msgpack.decode(packed, type=Request) == composed
