"""Sequences of a measurement: where their blocks lie, and the steps that they take part in.

Sequence s has the blocks [s * blocks, (s + 1) * blocks) and the state slot s.
"""

from dataclasses import dataclass

import numpy as np

from ingest.command.bench.cases import prompt
from kernels.ops import BLOCK_TOKENS, I32, Step


@dataclass(frozen=True, slots=True)
class Layout:
    """blocks: of each sequence.   slot_of: of the first one's state; the others follow"""

    blocks: int
    first_block: int = 0
    first_slot: int = 0

    def tables(self, sequences: int) -> I32:
        ids = np.arange(sequences * self.blocks, dtype=np.int32) + self.first_block
        return ids.reshape(sequences, self.blocks)

    def decode(self, token_ids: list[int], position: int) -> Step:
        """One token of each sequence, all at this position."""
        count = len(token_ids)
        rows: I32 = np.arange(count, dtype=np.int32)
        return self._step(token_ids, np.full(count, position, np.int32), rows, rows, count)

    def prefill(self, token_ids: list[int], begin: int, *, is_last: bool) -> Step:
        """Positions from begin on, of sequence 0; of the last chunk, the last token's logits."""
        count = len(token_ids)
        positions = np.arange(begin, begin + count, dtype=np.int32)
        wanted = np.array([count - 1] if is_last else [], np.int32)
        return self._step(token_ids, positions, np.zeros(count, np.int32), wanted, 1)

    def every_logit(self, token_ids: list[int], begin: int) -> Step:
        """As prefill, and the logits of all its tokens."""
        count = len(token_ids)
        rows: I32 = np.arange(count, dtype=np.int32)
        return self._step(token_ids, rows + np.int32(begin), np.zeros(count, np.int32), rows, 1)

    def _step(
        self, token_ids: list[int], positions: I32, seq_index: I32, wanted: I32, sequences: int
    ) -> Step:
        tables = self.tables(sequences)
        blocks = tables[seq_index, positions // BLOCK_TOKENS].astype(np.int64)
        return Step(
            token_ids=np.array(token_ids, np.int32),
            positions=positions,
            seq_index=seq_index,
            slot_mapping=blocks * BLOCK_TOKENS + positions % BLOCK_TOKENS,
            block_tables=tables,
            logit_rows=wanted,
            state_slots=np.arange(sequences, dtype=np.int32) + np.int32(self.first_slot),
        )


def tokens_of(sequence: int, count: int, vocab_size: int) -> list[int]:
    """Token ids without meaning."""
    return prompt(sequence, count, vocab_size)
