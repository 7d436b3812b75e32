"""Which tokens a grammar allows next: for one sequence, and the vocabulary they share.

    masker = Masker(text)              once a process; the first grammar makes the vocabulary's tree
    masker.prepare(grammar)            from any thread: compile it, where nobody waits for it
    mask = masker.start(grammar)       one sequence; compiled grammars are kept for those like it
    mask.takes(token_id)               cheap: for the one token that is wanted anyhow
    mask.allowed()                     all of them
    mask.advance(token_id)             it was chosen; also for journalled tokens

A pure function of the grammar and of the tokens so far: the same in every pool, and after a
take-over. Where only one text can follow, its tokens are those that the tokenizer would make of it.
"""

from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock
from typing import Final

import numpy as np
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from numpy.typing import NDArray

from workers.text.grammar import compiled, sentence
from workers.text.text_model import TextModel

KEPT: Final = 64  # compiled grammars


class Mask:
    """What one sequence may say next. error: why nothing can be said any more; "" while all is
    well."""

    def __init__(self, matcher: LLMatcher, vocab_size: int, end_ids: frozenset[int]) -> None:
        self._matcher, self._vocab_size, self._end_ids = matcher, vocab_size, end_ids
        self.error = ""
        self._look()

    def takes(self, token_id: int) -> bool:
        """Whether this token may come next."""
        if token_id in self._end_ids:
            return bool(self._matcher.is_accepting())
        return not self._matcher.is_stopped() and self._matcher.validate_tokens([token_id]) == 1

    def allowed(self) -> NDArray[np.bool_]:
        """(V,) which tokens may come next: at least one, unless there is an error."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._look()
        result = np.unpackbits(bits, count=self._vocab_size, bitorder="little").view(np.bool_)
        if not self.error and not result.any():
            self.error = "nothing can follow"
        return result

    def advance(self, token_id: int) -> None:
        """This token was chosen; an end token ends it."""
        if token_id not in self._end_ids and not self.error:
            self._matcher.consume_token(token_id)
            self._look()

    def _look(self) -> None:
        if self._matcher.is_error():
            self.error = sentence(self._matcher.get_error())


class Masker:
    """Of one model. From any thread."""

    def __init__(self, text: TextModel) -> None:
        self._text = text
        self._tokenizer: LLTokenizer | None = None
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()
        self._lock, self._building = Lock(), Lock()

    def prepare(self, grammar: str) -> None:
        """So that start takes no time."""
        self._matcher(grammar)

    def start(self, grammar: str) -> Mask:
        """At the grammar's beginning; of one that does not compile the mask has an error."""
        text = self._text
        return Mask(self._matcher(grammar).deep_copy(), text.vocab_size, text.end_ids)

    def _matcher(self, grammar: str) -> LLMatcher:
        with self._lock:
            if grammar in self._compiled:
                self._compiled.move_to_end(grammar)
                return self._compiled[grammar]
        made = compiled(self._tree(), grammar)
        with self._lock:
            self._compiled[grammar] = made
            if len(self._compiled) > KEPT:
                self._compiled.popitem(last=False)
        return made

    def _tree(self) -> LLTokenizer:
        with self._building:
            if self._tokenizer is None:
                self._tokenizer = tokenizer_of(self._text)
            return self._tokenizer


class Vocabulary:
    """What llguidance asks of a tokenizer. Control tokens print nothing, so no grammar has them."""

    def __init__(self, text: TextModel) -> None:
        self.eos_token_id = min(text.end_ids)
        self.bos_token_id = None
        self.tokens: Sequence[bytes] = [text.token_bytes(i) for i in range(text.vocab_size)]
        self.special_token_ids: Sequence[int] = []
        self._text = text

    def __call__(self, raw: bytes) -> list[int]:
        """The tokens of a text that stands in the middle of another."""
        return self._text.encode_inside(raw.decode())


def tokenizer_of(text: TextModel) -> LLTokenizer:
    """The tree of a vocabulary: a second or two for one of 150,000 tokens."""
    end_ids = sorted(text.end_ids)
    return LLTokenizer(
        TokenizerWrapper(Vocabulary(text)), n_vocab=text.vocab_size, eos_token=end_ids
    )
