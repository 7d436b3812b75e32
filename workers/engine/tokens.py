"""From a step's logits to the events of its tokens: sampled, digested, as text."""

from collections.abc import Callable
from collections.abc import Sequence as Items

import numpy as np

from kernels.arithmetic import ARITHMETIC_VERSION
from kernels.arrays import Arrays
from kernels.ops import F32, U64, Ops
from workers.engine.batch import Batch
from workers.engine.digest import first_link, link_text, next_link
from workers.engine.metrics import TokenRate
from workers.engine.sampler import Draw, Sampler
from workers.engine.sequence import Sequence
from workers.text.text_model import TextModel
from workers.wire import TokenEvent

OnLogits = Callable[[str, int, F32], None]
Chosen = tuple[Sequence, TokenEvent | None]  # None: its logits are not finite


class Tokens:
    """Logits lie where arrays are; what is asked of them comes here: as little as can be.

    first_link  where every digest begins
    """

    def __init__(
        self,
        ops: Ops,
        text: TextModel,
        arrays: Arrays,
        now_ms: Callable[[], int],
        on_logits: OnLogits | None,
    ) -> None:
        self.first_link = first_link(ARITHMETIC_VERSION, text.weights_digest)
        self._ops, self._text, self._arrays, self._now_ms = ops, text, arrays, now_ms
        self._on_logits = on_logits
        self._sampler = Sampler(ops, text.hidden_ids, arrays)
        self._rate = TokenRate()

    @property
    def tokens_per_s(self) -> float:
        """Output tokens of the last ten seconds."""
        return self._rate.tokens_per_s(self._now_ms())

    def choose(self, batch: Batch, logits: F32) -> Items[Chosen]:
        """The next token of each sampled sequence, appended to it; in the order of the batch."""
        for sequence, position, begin, end in batch.watched:
            assert self._on_logits is not None
            self._on_logits(sequence.id, position, self._arrays.read(logits[begin:end]))
        if not batch.sampled:
            return []
        draws, logits_sums = self.draw(batch, logits)
        now_ms = self._now_ms()
        self._rate.add(now_ms, len(draws))
        return [
            (sequence, self._event(sequence, draw, logits_sums[row], now_ms))
            for (sequence, row), draw in zip(batch.sampled, draws, strict=True)
        ]

    def draw(self, batch: Batch, logits: F32) -> tuple[Items[Draw | None], list[int]]:
        """The choice for each sampled sequence, the sum of each row's bits. Nothing is noted."""
        draws = self._sampler.sample(batch.sampled, logits)
        sums: U64 = np.empty(logits.shape[0], np.uint64)
        self._ops.logits_sum(sums, logits)
        return draws, sums.tolist()

    def _event(
        self, sequence: Sequence, draw: Draw | None, logits_sum: int, now_ms: int
    ) -> TokenEvent | None:
        if draw is None:
            return None
        index = sequence.num_output
        text = sequence.append(draw.token_id, self._text.end_ids)
        sequence.link = next_link(sequence.link, draw.token_id, logits_sum)
        sequence.times.token(now_ms)
        return TokenEvent(
            index=index,
            token_id=draw.token_id,
            text=text,
            digest=link_text(sequence.link),
            logprobs=draw.logprobs,
        )
