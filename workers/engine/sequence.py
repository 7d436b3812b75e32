"""One request while it is inside the engine: its tokens, its blocks and state, how it ends.

    token_ids   | prompt ...................... | output ... |
                [0, num_cached)                   KV present
                [num_cached, len(token_ids))      to be computed: if only one is left, a decode
                len(token_ids) <= max_length      prompt + max_tokens, or the context; blocks are
                                                  reserved up to there

A resumed sequence starts with its journalled tokens already appended: they are prefilled like a
prompt, never emitted again, and everything after them is what it would have been (law one).

Where the model has recurrent layers, state_slot holds their state after num_cached tokens.

A sequence with `reuse` may begin with blocks that others made: then it starts with num_cached > 0,
and never writes to a block below that.

What its class promises (workers/sla.py) is seen from here: level 0 is the most urgent class of the
table, due_ms the time by which it should be started, rank the order among all.
"""

from collections.abc import Sequence as Items
from typing import TYPE_CHECKING, Final

import numpy as np

from kernels.ops import BLOCK_TOKENS, I32
from workers.engine.metrics import Times
from workers.engine.reuse import Reuse
from workers.sla import SlaClass, SlaTable
from workers.text.stream import TextStream
from workers.wire import Request, TokenEvent, Usage

if TYPE_CHECKING:
    from workers.text.mask import Mask

TABLE: Final = SlaTable()  # the classes that always exist, as they are when nothing is said


class Sequence:
    """Lives from Engine.add to its end event; owned by the engine's thread.

    level          0: the most urgent class; how urgent, among the classes of its table
    due_ms         by when it should be started: the promised first token, or the deadline less the
                   time that it takes (scheduler.py); Unix ms
    rank           (level, due_ms, order of arrival): the smallest is first
    served_ms      when a step last computed something of it; None: none has
    guarded_until  it is not displaced before: its class had waited too long; Unix ms
    mask           what its grammar allows next; None: anything
    is_away        suspended, and its KV is on its way to or from files
    """

    def __init__(
        self,
        request: Request,
        text: TextStream | None,
        link: int,
        context_length: int,
        table: SlaTable = TABLE,
    ) -> None:
        """link is the digest chain's value before the first token.

        text: None where nobody reads the answer (simulation, calibration)
        """
        self.request = request
        self.id = request.id
        self.text = text
        self.mask: Mask | None = None
        self.link = link
        self.token_ids: list[int] = list(request.token_ids)
        self.num_prompt = len(self.token_ids)
        self.max_length = min(self.num_prompt + request.params.max_tokens, context_length)
        self.num_cached = 0
        self.blocks: list[int] = []
        self.block_row: I32 = np.empty(0, np.int32)
        self.state_slot: int | None = None
        self.output_counts: dict[int, int] = {}
        self.finish_reason: str | None = None
        self.every_logit = False
        self.keep = False
        self.reuse: Reuse | None = None
        self.num_reused = -1
        self.times = Times(request.arrival_ms)
        self.served_ms: int | None = None
        self.guarded_until = 0
        self.is_away = False
        self.sla: SlaClass = table[request.sla]
        self.level = table.urgency[self.sla.name]
        self.due_ms = due_of(self.sla, request)
        self.rank = (self.level, self.due_ms, 0)

    def reclass(self, name: str, table: SlaTable) -> None:
        """It belongs to another class from now on; whoever keeps it in order ranks it anew."""
        self.sla = table[name]
        self.level = table.urgency[self.sla.name]
        self.due_ms = due_of(self.sla, self.request)

    @property
    def num_output(self) -> int:
        return len(self.token_ids) - self.num_prompt

    @property
    def num_uncached(self) -> int:
        return len(self.token_ids) - self.num_cached

    @property
    def num_blocks_wanted(self) -> int:
        """Blocks that hold it to its longest possible end."""
        return (self.max_length + BLOCK_TOKENS - 1) // BLOCK_TOKENS

    @property
    def usage(self) -> Usage:
        return Usage(
            prompt_tokens=self.num_prompt,
            output_tokens=self.num_output,
            cached_tokens=max(0, min(self.num_reused, self.num_prompt)),
        )

    def note_reused(self, num_tokens: int) -> None:
        """It got its memory, and so many tokens need no computing; only the first time counts."""
        if self.num_reused < 0:
            self.num_reused = num_tokens

    def take_blocks(self, blocks: list[int]) -> None:
        """The blocks reserved for it, in order of position."""
        assert not self.blocks, self.id
        self.blocks = blocks
        self.block_row = np.array(blocks, np.int32)

    def append(self, token_id: int, end_ids: frozenset[int]) -> str:
        """One more output token; the text that may be shown now. Sets finish_reason when it is the
        last.

        An end token is counted and has no text; it is never pushed into the text stream.
        """
        assert self.finish_reason is None, self.id
        self.token_ids.append(token_id)
        if self.mask is not None:
            self.mask.advance(token_id)
        self.output_counts[token_id] = self.output_counts.get(token_id, 0) + 1
        if token_id in end_ids:
            self.finish_reason = "stop"
            return ""
        shown = "" if self.text is None else self.text.push(token_id)
        if self.text is not None and self.text.stopped:
            self.finish_reason = "stop"
        elif len(self.token_ids) >= self.max_length:
            self.finish_reason = "length"
        return shown

    def resume(self, journal: Items[TokenEvent], link: int, end_ids: frozenset[int]) -> None:
        """Append what an earlier owner journalled; link is the chain's value after it."""
        for event in journal:
            assert event.index == self.num_output, f"{self.id}: journal has a gap at {event.index}"
            self.append(event.token_id, end_ids)
        self.link = link
        self.times.resumed = True


def due_of(sla: SlaClass, request: Request) -> int:
    """By when a request should be started: what is promised first, by its class or by itself."""
    promised = sla.ttft_ms if sla.ttft_ms is not None else sla.deadline_ms
    due_ms = request.arrival_ms + (promised or 0)
    return due_ms if request.deadline_ms is None else min(due_ms, request.deadline_ms)
