"""Text becomes the same token ids as in the programs the vocabularies come from."""

import json
from pathlib import Path

import pytest

from workers.text.text_model import TextModel
from workers.text.vocabulary import Kind, UnknownTokenizer, build_tokenizer, text_card

CASES = json.loads((Path(__file__).parents[2] / "golden" / "tokenization.json").read_text("utf-8"))[
    "tokenizers"
]["smollm2"]
LLAMA2 = {
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", "<0x21>", "▁", "a", "b", "ab", "▁a", "▁ab"],
    "tokenizer.ggml.scores": [0.0, 0.0, 0.0, 0.0, -5.0, -6.0, -7.0, -1.0, -3.0, -2.0],
    "tokenizer.ggml.token_type": [2, 3, 3, 6, 1, 1, 1, 1, 1, 1],
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.unknown_token_id": 0,
}


def gpt2(**changes):
    """Metadata of a byte-level vocabulary of five tokens and one merge."""
    fields = {"model": "gpt2", "pre": "qwen2", "tokens": ["a", "b", "ab", "<|im_end|>", "[PAD4]"]}
    fields |= {"token_type": [1, 1, 1, 3, 5], "merges": ["a b"], "eos_token_id": 3} | changes
    return {f"tokenizer.ggml.{key}": value for key, value in fields.items() if value is not None}


def model_of(fields, vocab_size=None):
    vocab_size = vocab_size or len(fields["tokenizer.ggml.tokens"])
    card = {"context_length": 8, "vocab_size": vocab_size, "weights_digest": ""}
    card["text"] = text_card(fields, vocab_size)
    return TextModel("test", card, build_tokenizer(fields))


@pytest.mark.parametrize("case", CASES, ids=lambda case: repr(case["text"])[:30])
def test_ids_equal_the_recorded_ones(default_text, case):
    assert default_text.encode(case["text"], special=True) == case["ids"]
    assert default_text.encode(case["text"]) == case.get("ids_plain", case["ids"])


@pytest.mark.parametrize("case", CASES, ids=lambda case: repr(case["text"])[:30])
def test_the_bytes_of_the_tokens_are_the_text(default_text, case):
    ids = default_text.encode(case["text"])
    assert b"".join(map(default_text.token_bytes, ids)) == case["text"].encode()


def test_end_ids_are_declared_or_known_by_their_text(default_text):
    assert default_text.end_ids == {0, 2}
    assert model_of(gpt2(eos_token_id=None)).end_ids == {3}
    assert model_of(gpt2(eot_token_id=2)).end_ids == {2, 3}


def test_a_word_that_reads_like_an_end_token_ends_nothing():
    """Only a control token's text counts, not a normal token's."""
    fields = gpt2(tokens=["a", "b", "<EOT>", "<|im_end|>", "[PAD4]"], merges=[])
    assert model_of(fields).end_ids == {3}


def test_padding_is_hidden_within_the_vocabulary_and_past_it():
    model = model_of(gpt2(), vocab_size=7)
    assert model.hidden_ids == {4, 5, 6}
    assert model.token_bytes(4) == model.token_bytes(6) == b""


def test_a_bos_token_comes_first_where_the_model_wants_one():
    assert model_of(gpt2(bos_token_id=3)).encode("ab") == [2]
    assert model_of(gpt2(bos_token_id=3, add_bos_token=True)).encode("ab") == [3, 2]
    assert model_of(gpt2(bos_token_id=3, pre="llama-bpe")).encode("ab") == [3, 2]
    assert model_of(gpt2(bos_token_id=3, add_bos_token=True)).encode(
        "<|im_end|>ab", special=True
    ) == [
        3,
        2,
    ]


def test_llama_bpe_takes_whole_pieces_that_are_tokens():
    """Merges could not make "ab" here, yet it is an entry of the vocabulary."""
    assert model_of(gpt2(pre="llama-bpe", merges=[])).encode("ab") == [2]
    assert model_of(gpt2(pre="qwen2", merges=[])).encode("ab") == [0, 1]


def test_sentencepiece_joins_the_best_score_first():
    """ab (-1) before ▁a (-3); a space is put in front; ! is spelt as a byte."""
    model = model_of(LLAMA2)
    assert model.encode("ab") == [1, 9]
    assert model.encode("a b") == [1, 8, 4, 6]
    assert model.encode("ab!") == [1, 9, 3]
    assert b"".join(map(model.token_bytes, model.encode("a b!"))) == b" a b!"


def test_sentencepiece_without_a_space_in_front():
    assert model_of(LLAMA2 | {"tokenizer.ggml.add_space_prefix": False}).encode("ab") == [1, 7]


def test_user_defined_tokens_are_cut_out_of_any_text():
    fields = gpt2(token_type=[1, 1, 1, Kind.USER_DEFINED, 5], eos_token_id=None)
    model = model_of(fields)
    assert model.encode("a<|im_end|>b") == [0, 3, 1]
    assert model.token_bytes(3) == b"<|im_end|>"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": "t5"}, "tokenizer model 't5'"),
        ({"pre": "martian"}, "pre-tokenizer 'martian'"),
        ({"tokens": None}, "tokenizer.ggml.tokens"),
        ({"token_type": [1]}, "5 tokens but 1 token types"),
        ({"eos_token_id": 5}, "eos_token_id is 5, but there are 5 tokens"),
        ({"model": "llama"}, "tokenizer.ggml.scores"),
        ({"merges": None}, "no tokenizer.ggml.merges"),
    ],
)
def test_a_tokenizer_that_cannot_be_built_is_named(changes, said):
    with pytest.raises(UnknownTokenizer, match=said):
        model_of(gpt2(**changes), vocab_size=5)


def test_more_tokens_than_the_embedding_has_rows_are_refused():
    with pytest.raises(UnknownTokenizer, match="5 tokens, but the embedding has 4 rows"):
        model_of(gpt2(), vocab_size=4)
