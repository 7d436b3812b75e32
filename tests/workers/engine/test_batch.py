"""The arrays of a step are those of the contract."""

import numpy as np

from kernels.ops import BLOCK_TOKENS
from tests.workers.engine.fake import CONTEXT, FakeText, make_request
from workers.engine.batch import build_batch
from workers.engine.chunks import Scheduled
from workers.engine.sequence import Sequence
from workers.text.stream import TextStream


def part(request_id: str, blocks: list[int], begin: int, end: int, total: int) -> Scheduled:
    request = make_request(request_id, range(100, 100 + total))
    sequence = Sequence(request, TextStream(FakeText(), ()), 0, CONTEXT)
    sequence.take_blocks(blocks)
    sequence.num_cached = begin
    return Scheduled(sequence, end)


def test_a_decode_and_two_chunks():
    decode = part("a", [7, 2], 299, 300, 300)
    inner = part("b", [5], 0, 3, 9)
    last = part("c", [1, 0, 4], 254, 258, 258)
    batch = build_batch([decode, inner, last])
    step = batch.step
    assert step.token_ids.tolist() == [399, 100, 101, 102, 354, 355, 356, 357]
    assert step.positions.tolist() == [299, 0, 1, 2, 254, 255, 256, 257]
    assert step.seq_index.tolist() == [0, 1, 1, 1, 2, 2, 2, 2]
    assert step.block_tables.tolist() == [[7, 2, 0], [5, 0, 0], [1, 0, 4]]
    n = BLOCK_TOKENS
    expected = [2 * n + 43, 5 * n, 5 * n + 1, 5 * n + 2, n + 254, n + 255, 0, 1]
    assert step.slot_mapping.tolist() == expected
    assert step.logit_rows.tolist() == [0, 7]
    assert batch.sampled == [(decode.sequence, 0), (last.sequence, 1)]
    assert batch.watched == []


def test_dtypes_and_contiguity_are_the_kernels():
    step = build_batch([part("a", [0], 0, 5, 5), part("b", [1], 3, 4, 4)]).step
    for array in (
        step.token_ids,
        step.positions,
        step.seq_index,
        step.block_tables,
        step.logit_rows,
    ):
        assert array.dtype == np.int32 and array.flags.c_contiguous
    assert step.slot_mapping.dtype == np.int64 and step.slot_mapping.flags.c_contiguous


def test_a_chunk_inside_a_prompt_wants_no_logits():
    batch = build_batch([part("a", [0], 0, 5, 9)])
    assert batch.step.logit_rows.tolist() == []
    assert batch.sampled == []


def test_a_watched_sequence_wants_the_logits_of_every_token():
    plain, watched = part("a", [0], 0, 3, 3), part("b", [1], 2, 5, 5)
    watched.sequence.every_logit = True
    batch = build_batch([plain, watched])
    assert batch.step.logit_rows.tolist() == [2, 3, 4, 5]
    assert batch.sampled == [(plain.sequence, 0), (watched.sequence, 3)]
    assert batch.watched == [(watched.sequence, 2, 1, 4)]
