"""The text side of a model, taken out of its GGUF once, for TextModel to read.

It becomes tokenizer.json and the "text" part of card.json. Byte-level BPE ("gpt2" in GGUF) and
sentencepiece-style vocabularies ("llama") both become a `tokenizers` BPE model, so that one library
encodes both. Plain text must never give a control token: its entry is renamed to what no text can
produce, and TextModel cuts control tokens out by itself.

Source: the pre-tokenizer expressions and the end-of-generation texts are llama.cpp's.
"""

from collections.abc import Mapping, Sequence
from enum import IntEnum
from itertools import pairwise
from typing import Any, Final

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from workers.text.template import ChatTemplate

PREFIX: Final = "tokenizer.ggml."
TEMPLATE: Final = "tokenizer.chat_template"
CONTRACTIONS: Final = "'s|'t|'re|'ve|'m|'ll|'d"
TAIL: Final = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
GPT2: Final = CONTRACTIONS + r"| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
QWEN2: Final = (
    rf"(?i:{CONTRACTIONS})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*"
    + TAIL
)
QWEN35: Final = (
    rf"(?i:{CONTRACTIONS})|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*" + TAIL
)
LLAMA3: Final = QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")

# tokenizer.ggml.pre -> the splits applied one after the other, each to the pieces of the one before
SPLITS: Final[dict[str, tuple[str, ...]]] = {
    "default": (GPT2,),
    "gpt-2": (GPT2,),
    "gpt2": (GPT2,),
    "smollm": (r"\p{N}", GPT2),
    "qwen2": (QWEN2,),
    "qwen35": (QWEN35,),
    "llama-bpe": (LLAMA3,),
    "llama3": (LLAMA3,),
}
WHOLE_PIECES: Final = (
    "llama-bpe",
    "llama3",
)  # a piece that is a vocabulary entry is that token, no merges

NEVER: Final = (float("inf"), 0)  # behind all ranks

# texts of tokens that end a generation: turns, documents, and fill-in-the-middle marks
ENDS: Final = """
<|im_end|> <|endoftext|> <|eot_id|> <|eom_id|> <|end|> <|return|> <|call|> <|end_of_text|>
<end_of_turn> <end_of_utterance> <EOT> _<EOT> <|file_sep|>
<|fim_pad|> <fim-pad> <PAD> <|fim_repo|> <|repo_name|> <fim-repo> <REPO>
"""


class Kind(IntEnum):
    """tokenizer.ggml.token_type."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class UnknownTokenizer(ValueError):
    """The GGUF's tokenizer is of a kind that this version cannot build; the message names it."""


def build_tokenizer(fields: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer for plain text; control tokens are never its output.

    fields  the GGUF's metadata by key
    """
    model = fields.get(PREFIX + "model")
    if model == "gpt2":
        return _byte_level(fields)
    if model == "llama":
        return _sentencepiece(fields)
    raise UnknownTokenizer(f"tokenizer model {model!r} is not supported")


def text_card(fields: Mapping[str, Any], vocab_size: int) -> dict[str, Any]:
    """What TextModel needs beside tokenizer.json, as JSON values.

    vocab_size  rows of the logits; rows past the token list are padding
    """
    tokens, kinds = _tokens(fields)
    if len(tokens) > vocab_size:
        raise UnknownTokenizer(f"{len(tokens)} tokens, but the embedding has {vocab_size} rows")
    bos, eos = (_id_of(fields, name, len(tokens)) for name in ("bos", "eos"))
    is_byte_level = fields[PREFIX + "model"] == "gpt2"
    return {
        "byte_level": is_byte_level,
        "bos_id": bos,
        "eos_id": eos,
        "add_bos": bos is not None
        and bool(fields.get(PREFIX + "add_bos_token", _adds_bos(fields))),
        "space_prefix": not is_byte_level and bool(fields.get(PREFIX + "add_space_prefix", True)),
        "end_ids": _end_ids(fields, tokens, kinds),
        "hidden_ids": [i for i, k in enumerate(kinds) if k == Kind.UNUSED]
        + list(range(len(tokens), vocab_size)),
        "control": _of_kind(tokens, kinds, Kind.CONTROL, Kind.UNKNOWN),
        "user_defined": _of_kind(tokens, kinds, Kind.USER_DEFINED),
        "template": _template(fields),
    }


def _template(fields: Mapping[str, Any]) -> str | None:
    """The chat template, if there is one. Raises BadTemplate when it cannot be run."""
    source = fields.get(TEMPLATE)
    if source is None:
        return None
    if not isinstance(source, str):
        raise UnknownTokenizer("tokenizer.chat_template is not a text")
    ChatTemplate(source).try_out()
    return source


def _tokens(fields: Mapping[str, Any]) -> tuple[Sequence[str], Sequence[int]]:
    tokens = fields.get(PREFIX + "tokens")
    if not tokens:
        raise UnknownTokenizer("the file holds no tokenizer.ggml.tokens")
    kinds = fields.get(PREFIX + "token_type") or [Kind.NORMAL] * len(tokens)
    if len(kinds) != len(tokens):
        raise UnknownTokenizer(f"{len(tokens)} tokens but {len(kinds)} token types")
    return tokens, kinds


def _id_of(fields: Mapping[str, Any], name: str, num_tokens: int) -> int | None:
    """The id of a token with a role, if the file declares one."""
    token_id = fields.get(f"{PREFIX}{name}_token_id")
    if token_id is not None and not 0 <= token_id < num_tokens:
        raise UnknownTokenizer(
            f"{name}_token_id is {token_id!r}, but there are {num_tokens} tokens"
        )
    return token_id


def _of_kind(tokens: Sequence[str], kinds: Sequence[int], *wanted: Kind) -> dict[str, int]:
    return {t: i for i, (t, k) in enumerate(zip(tokens, kinds, strict=True)) if k in wanted and t}


def _adds_bos(fields: Mapping[str, Any]) -> bool:
    """Whether a prompt begins with the bos token when the file does not say."""
    return fields[PREFIX + "model"] == "llama" or fields.get(PREFIX + "pre") in WHOLE_PIECES


def _end_ids(fields: Mapping[str, Any], tokens: Sequence[str], kinds: Sequence[int]) -> list[int]:
    declared = {_id_of(fields, name, len(tokens)) for name in ("eos", "eot", "eom")}
    ends = set(ENDS.split())
    named = {i for i, token in enumerate(tokens) if token in ends and kinds[i] != Kind.NORMAL}
    return sorted(named | {token_id for token_id in declared if token_id is not None})


def _vocabulary(fields: Mapping[str, Any]) -> dict[str, int]:
    """Token text -> id, without gaps in the ids; what plain text must not give is renamed."""
    vocabulary: dict[str, int] = {}
    for token_id, (text, kind) in enumerate(zip(*_tokens(fields), strict=True)):
        is_plain = kind in (Kind.NORMAL, Kind.USER_DEFINED, Kind.BYTE) and text not in vocabulary
        vocabulary[text if is_plain else f"\0{token_id}"] = token_id
    return vocabulary


def _byte_level(fields: Mapping[str, Any]) -> Tokenizer:
    pre = fields.get(PREFIX + "pre") or "default"
    if pre not in SPLITS:
        raise UnknownTokenizer(f"pre-tokenizer {pre!r} is not supported")
    vocabulary = _vocabulary(fields)
    if PREFIX + "merges" not in fields and any(map(_is_joined, vocabulary)):
        raise UnknownTokenizer("the file holds no tokenizer.ggml.merges: no text could be encoded")
    merges = [_pair(merge) for merge in fields.get(PREFIX + "merges") or ()]
    known = [
        m for m in merges if m[0] in vocabulary and m[1] in vocabulary and m[0] + m[1] in vocabulary
    ]
    tokenizer = Tokenizer(models.BPE(vocabulary, known, ignore_merges=pre in WHOLE_PIECES))
    splits = [pre_tokenizers.Split(Regex(split), "isolated") for split in SPLITS[pre]]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, byte_level])
    return tokenizer


def _is_joined(text: str) -> bool:
    """Whether plain text becomes this token by merges only."""
    return len(text) > 1 and not text.startswith("\0")


def _pair(merge: str) -> tuple[str, str]:
    """The two sides of a merge; the first character may itself be a space in old files."""
    left, right = merge[0] + merge[1:].split(" ", 1)[0], merge[1:].split(" ", 1)[-1]
    return left, right


def _sentencepiece(fields: Mapping[str, Any]) -> Tokenizer:
    """Each token becomes one merge; the highest score gets the lowest rank."""
    vocabulary = _vocabulary(fields)
    scores = fields.get(PREFIX + "scores")
    if not scores or len(scores) != len(vocabulary):
        raise UnknownTokenizer(
            f"the file holds no tokenizer.ggml.scores for {len(vocabulary)} tokens"
        )
    ranks = {
        text: (-scores[token_id], token_id)
        for text, token_id in vocabulary.items()
        if not text.startswith("\0")
    }
    found = {text: pair for text in ranks if (pair := _last_pair(text, ranks)) is not None}
    merges = [found[text] for text in sorted(found, key=ranks.__getitem__)]
    unknown = f"\0{fields.get(PREFIX + 'unknown_token_id', 0)}"
    tokenizer = Tokenizer(
        models.BPE(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    return tokenizer


def _last_pair(text: str, ranks: Mapping[str, tuple[float, int]]) -> tuple[str, str] | None:
    """The two pieces that become this token; None when nothing does.

    Whatever stands around it: a piece that crosses its ends would keep it from coming to be, so
    what goes on inside is what goes on when it stands alone. One pair is enough for each token,
    where there are as many as ways to cut it.
    """
    cuts = [
        (text[:cut], text[cut:])
        for cut in range(1, len(text))
        if text[:cut] in ranks and text[cut:] in ranks
    ]
    if len(cuts) < 2:
        return cuts[0] if cuts else None
    pieces = list(text)
    while len(pieces) > 2:
        joined = [ranks.get(a + b, NEVER) for a, b in pairwise(pieces)]
        best = min(joined)
        if best == NEVER:
            return None
        at = joined.index(best)
        pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]
    return pieces[0], pieces[1]
