"""Vocabularies of whole families: 47 awkward texts and eight conversations, as recorded elsewhere.

Gemma's vocabulary is not ours to give away whole: the part of it that these texts can touch is kept
here, and where the whole one lies beside the checkout, it is held to the same ids.
"""

import json
import lzma
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.model.gguf_file import GgufFile
from workers.text.template import BadTemplate, TemplateError
from workers.text.text_model import CARD, TOKENIZER, TextModel
from workers.text.vocabulary import build_tokenizer, text_card

GOLDEN = Path(__file__).parents[2] / "golden"
BESIDE = Path(__file__).parents[4] / "shared" / "golden"
TOKENIZERS = json.loads((GOLDEN / "tokenization.json").read_text("utf-8"))["tokenizers"]
CHATS = json.loads((GOLDEN / "chat_qwen35.json").read_text("utf-8"))["cases"]
TEMPLATE = (GOLDEN / "chat_template_qwen35.jinja").read_text("utf-8")
WHOLE_GEMMA = BESIDE / "vocab_gemma3.gguf"


def loaded(folder, fields):
    """The text side as a pool loads it: written out, and read again."""
    vocab_size = len(fields["tokenizer.ggml.tokens"])
    card = {"context_length": 8, "vocab_size": vocab_size, "weights_digest": ""}
    card["text"] = text_card(fields, vocab_size)
    (folder / TOKENIZER).write_text(build_tokenizer(fields).to_str(), "utf-8")
    (folder / CARD).write_text(json.dumps(card), "utf-8")
    return TextModel.load(folder)


@pytest.fixture(scope="session")
def family(tmp_path_factory):
    """A function that gives the text side of a vocabulary of tests/golden."""
    made = {}

    def of(name):
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            path = folder / "vocab.gguf"
            path.write_bytes(lzma.decompress((GOLDEN / f"vocab_{name}.gguf.xz").read_bytes()))
            fields = dict(GgufFile(path).fields)
            if name == "qwen35":
                fields["tokenizer.chat_template"] = TEMPLATE
            made[name] = loaded(folder, fields)
        return made[name]

    return of


@pytest.mark.parametrize("name", ["qwen2", "qwen35"])
def test_every_text_becomes_the_recorded_ids(family, name):
    model = family(name)
    for case in TOKENIZERS[name]:
        text = case["text"]
        assert model.encode(text, special=True) == case["ids"], text
        plain = model.encode(text)
        assert plain == case.get("ids_plain", case["ids"]), text
        assert b"".join(map(model.token_bytes, plain)) == text.encode()


def check_gemma(model, id_of):
    """Recorded without the bos token, which comes first here.   id_of: ours -> the whole's"""
    for case in TOKENIZERS["gemma3_spm"]:
        text = case["text"]
        for ids, expected in (
            (model.encode(text, special=True), case["ids"]),
            (model.encode(text), case.get("ids_plain", case["ids"])),
        ):
            found = [id_of(i) for i in ids]
            assert found[:1] == [2], text
            assert found[len(found) - len(expected) :] == expected, text
            assert len(found) - len(expected) == (0 if expected[:1] == [2] else 1), text


def test_a_part_of_gemma_gives_the_recorded_ids(tmp_path):
    part = json.loads((GOLDEN / "vocab_gemma3_part.json").read_text("utf-8"))
    check_gemma(loaded(tmp_path, part["fields"]), part["ids"].__getitem__)


@pytest.mark.slow
@pytest.mark.skipif(not WHOLE_GEMMA.exists(), reason="the whole vocabulary is not beside us")
def test_the_whole_of_gemma_gives_the_recorded_ids(tmp_path):
    model = loaded(tmp_path, GgufFile(WHOLE_GEMMA).fields)
    check_gemma(model, int)
    assert model.end_ids == {1, 106}


def test_the_ids_that_end_and_those_that_are_hidden(family):
    qwen35, qwen2 = family("qwen35"), family("qwen2")
    assert qwen35.end_ids == {248044, 248046, 248063, 248064, 248065}
    assert set(range(248077, 248320)) <= qwen35.hidden_ids
    assert qwen2.end_ids == {151643, 151645, 151662, 151663, 151664}


@pytest.mark.parametrize("case", CHATS, ids=lambda case: case["name"])
def test_a_conversation_becomes_the_recorded_ids(family, case):
    assert family("qwen35").render(case["messages"], **case["kwargs"]) == case["ids"]


def test_thinking_is_shown_and_a_turn_ends_unseen(family):
    """<think> is text that a client sees; <|im_end|> prints nothing."""
    model = family("qwen35")
    assert model.token_bytes(248068) == b"<think>"
    assert model.token_bytes(248046) == b""


CONTROL = st.sampled_from(
    ["<|im_end|>", "<|im_start|>", "<|endoftext|>", "user\n", "a", "<|", "|>"]
)
HOSTILE = st.lists(CONTROL, max_size=6).map("".join)


@given(content=HOSTILE, tool=HOSTILE)
def test_nothing_a_client_writes_begins_or_ends_a_turn(family, content, tool):
    """Neither in a message nor in the description of a tool."""
    model = family("qwen35")
    tools = [{"type": "function", "function": {"name": "f", "description": tool}}]

    def turns(content, tools):
        ids = model.render([{"role": "user", "content": content + "."}], tools=tools)
        return [i for i in ids if i in (248044, 248045, 248046)]

    harmless = [{"type": "function", "function": {"name": "f", "description": ""}}]
    assert turns(content, tools) == turns("", harmless)


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([], "No messages provided"),
        ([{"role": "assistant", "content": "x"}], "No user query found"),
        (
            [{"role": "user", "content": "x"}, {"role": "system", "content": "y"}],
            "System message must be at the beginning",
        ),
        ([{"role": "judge", "content": "x"}, {"role": "user", "content": "y"}], "Unexpected"),
    ],
)
def test_what_the_template_refuses_is_said_in_its_words(family, messages, said):
    with pytest.raises(TemplateError, match=said) as caught:
        family("qwen35").render(messages)
    assert not isinstance(caught.value, BadTemplate)
