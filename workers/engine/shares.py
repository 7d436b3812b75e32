"""From scores to a choice: sums in one order, cuts, and the draw itself.

Scores are logits moved so that the largest is 0; weights are their exp. Law one on this path:
maxima, comparisons and sorts are exact, and every sum of floats has its order written down here, in
float64:

    a sum over a row        256 lanes, lane l holds l, l + 256, l + 512, ...
      lane sums             rows folded in halves: row r += row r + half, until one is left
      total                 lanes from left to right (np.cumsum, which adds in order)
    a sum over sorted ones  from the largest on (np.cumsum)

np.sum, np.exp and np.log add or round as the machine likes, and do not occur. Among equals the
lowest id is first.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from kernels.ops import F32, I64

F64 = npt.NDArray[np.float64]
LANES: Final = 256
NUCLEUS_FLOORS: Final = (-4.0, -8.0, -14.0)  # how far below the largest top-p looks at first
ID_BITS: Final = np.uint64(32)


def lane_sums(weights: F32) -> F64:
    """(LANES,) float64."""
    num_rows = max(1, -(-len(weights) // LANES))
    rows: F64 = np.zeros((num_rows, LANES))
    rows.reshape(-1)[: len(weights)] = weights
    while num_rows > 1:
        half = (num_rows + 1) // 2
        rows[: num_rows - half] += rows[half:num_rows]
        num_rows = half
    first: F64 = rows[0]
    return first


def total_of(weights: F32) -> float:
    """The sum of a row."""
    return float(np.cumsum(lane_sums(weights))[-1])


def pick(weights: F32, number: float) -> int:
    """The index that number in [0, 1) falls on, each by its share; its weight is never 0.

    Not all weights may be 0. Shares lie lane after lane.
    """
    lanes = np.cumsum(lane_sums(weights))
    target = number * float(lanes[-1])
    lane = _reaching(lanes, target)
    inside = target - float(lanes[lane - 1]) if lane else target
    reached = np.cumsum(weights[lane::LANES], dtype=np.float64)
    return lane + LANES * _reaching(reached, inside)


def _reaching(reached: F64, target: float) -> int:
    """The first index past target; where rounding leaves none, the last that adds anything."""
    index = int(np.searchsorted(reached, target, side="right"))
    return index if index < len(reached) else int(np.searchsorted(reached, reached[-1]))


def descending(scores: F32, ids: I64) -> I64:
    """ids by falling score, the lowest id first among equals. Scores are <= 0, -inf included.

    One sort of whole numbers: the bits of -score above the id. NumPy does that many times faster
    than a stable sort.
    """
    bits = np.abs(scores[ids]).view(np.uint32).astype(np.uint64)  # abs: -0.0 has a bit too many
    keys = np.sort((bits << ID_BITS) | ids.astype(np.uint64))
    return (keys & np.uint64(0xFFFFFFFF)).astype(np.int64)


def top_k(scores: F32, k: int) -> I64:
    """Ids of the k largest, ascending.   1 <= k <= len(scores)"""
    border = np.partition(scores, len(scores) - k)[len(scores) - k]
    ids = np.flatnonzero(scores >= border)
    if len(ids) > k:
        ids = np.sort(descending(scores, ids)[:k])
    return ids


def top_p(scores: F32, weights: F32, p: float) -> I64:
    """Ids, ascending, of the shortest run of the largest whose share reaches p; at least one.

    Only those near the top are sorted as long as they suffice: a run of the largest is the same
    run, added in the same order, however many smaller ones are sorted after it.
    """
    mass = p * total_of(weights)
    for floor in (*NUCLEUS_FLOORS, -np.inf):
        order = descending(scores, np.flatnonzero(scores >= floor))
        reached = np.cumsum(weights[order], dtype=np.float64)
        if reached[-1] >= mass:
            break
    return np.sort(order[: int(np.searchsorted(reached, mass)) + 1])


def min_p(weights: F32, p: float) -> I64:
    """Ids, ascending, of those at least p times as likely as the likeliest."""
    return np.flatnonzero(weights >= np.float32(p * float(weights.max())))
