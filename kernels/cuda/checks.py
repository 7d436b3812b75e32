"""What the GPU's host refuses: arrays and steps that would read or write outside of memory.

Every refusal is an AssertionError that holds the values, as from kernels/cpu/module.c.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from kernels.ops import BLOCK_TOKENS, F32, Step

Array = npt.NDArray[Any]


def checked(
    array: Array, dtype: npt.DTypeLike, shape: tuple[int, ...] | None = None, *,
    is_written: bool = False,
) -> None:  # fmt: skip
    """Of this type, this shape (None: any), contiguous; with something in it if it is written."""
    assert array.dtype == dtype, f"has dtype {array.dtype}, not {np.dtype(dtype)}"
    assert shape is None or array.shape == shape, (array.shape, shape)
    assert array.flags.c_contiguous and array.flags.aligned, "is not contiguous"
    if is_written:
        assert array.flags.writeable, "is read-only"
        assert array.size, "is empty: there are no tokens"


def rows_of(x: F32, out: F32) -> int:
    """The distance of x's rows in numbers, where they may be columns of wider rows.

    out is as large, contiguous, and x itself or apart from it.
    """
    checked(out, np.float32, x.shape, is_written=True)
    assert x.dtype == np.float32 and x.flags.aligned, x.dtype
    assert len(x) <= 1 or x.strides[0] >= x[0].nbytes, "has rows that overlap"
    assert x[0].flags.c_contiguous, "has rows that are not contiguous"
    is_same = x.ctypes.data == out.ctypes.data and x.flags.c_contiguous
    assert is_same or not np.may_share_memory(x, out), "overlaps its output"
    return x.strides[0] // 4 if len(x) > 1 else x[0].size


def apart(out: Array, *others: Array) -> None:
    """out shares no byte with any of them, unless it is exactly that array."""
    for x in others:
        is_same = x.ctypes.data == out.ctypes.data and x.nbytes == out.nbytes
        assert is_same or not np.may_share_memory(out, x), "overlaps its output"


def is_inside(indices: Array, begin: int, end: int) -> None:
    """All in [begin, end)."""
    if indices.size:
        low, high = int(indices.min()), int(indices.max())
        assert begin <= low and high < end, f"{low}..{high} is not in [{begin}, {end})"


def check_positions(step: Step, num_tokens: int, num_blocks: int) -> None:
    """Each token's position lies in a block of the arena; tokens of a sequence ascend."""
    sequences, max_blocks = step.block_tables.shape
    checked(step.positions, np.int32, (num_tokens,))
    checked(step.seq_index, np.int32, (num_tokens,))
    checked(step.block_tables, np.int32)
    is_inside(step.seq_index, 0, sequences)
    is_inside(step.positions, 0, max_blocks * BLOCK_TOKENS)
    is_inside(step.block_tables, 0, num_blocks)
    is_same = np.diff(step.seq_index) == 0
    assert (np.diff(step.positions)[is_same] > 0).all(), "positions of a sequence ascend"


def check_state_step(step: Step, num_tokens: int, num_slots: int) -> None:
    """Tokens of a sequence are neighbours without a gap; each sequence has a slot of its own."""
    slots, seq_index, positions = step.state_slots, step.seq_index, step.positions
    checked(positions, np.int32, (num_tokens,))
    checked(seq_index, np.int32, (num_tokens,))
    checked(slots, np.int32)
    is_inside(positions, 0, 1 << 31)
    is_inside(seq_index, 0, slots.size)
    is_inside(slots, 0, num_slots)
    edges = np.flatnonzero(np.diff(seq_index)) + 1
    runs = seq_index[np.concatenate([[0], edges])]
    assert len(np.unique(slots[runs])) == len(runs), "a sequence or a slot in two places"
    is_same = np.diff(seq_index) == 0
    assert (np.diff(positions)[is_same] == 1).all(), "a position is left out"
