"""Which kernel takes an op of these sizes, and its grid: pure arithmetic of the kernels' headers.

tokens of a matmul    1 .. 4: dp4a      5 .. 64: tensor cores, a warp a stripe     more: tiles
tokens of attention   of a sequence with 8 or more of them here: in one piece; else each alone
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from kernels.ops import I32, STRIPE_KEYS

MAX_HEAD_DIM: Final = 512
MAX_TAPS: Final = 8  # of conv.cu
MAX_KEY_DIM: Final = 256  # of delta.cu
ALL_KEYS: Final = 1 << 30  # a window wider than any context
FEW_TOKENS: Final = 4  # of matmul_few.cu
SOME_TOKENS: Final = 64  # of matmul_some.cu
FEW_BYTES: Final = 11_008  # of its shared memory, a token
MANY_BYTES: Final = 2 * (64 * 272 + 8 * 64 * 8)
PREFILL_TOKENS: Final = 8  # of a sequence in one step, from which attention_prefill.cu takes them
PREFILL_DIMS: Final = (64, 128, 256)
MULTIPROCESSORS: Final = 128  # about as many as a large GPU has


@dataclass(frozen=True, slots=True)
class MatmulLaunch:
    """is_few: the kernel's name says how many tokens, so they are no argument."""

    kernel: str
    grid: tuple[int, ...]
    block: int
    shared_bytes: int
    is_few: bool


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """window: keys that a token sees; ALL_KEYS where there is none."""

    heads: int
    kv_heads: int
    head_dim: int
    window: int

    @property
    def share(self) -> int:
        """Query heads of one kv head."""
        return self.heads // self.kv_heads

    @property
    def queries(self) -> int:
        """Query rows of one block of attention_prefill.cu."""
        return 32 if self.head_dim == 256 else 64

    @property
    def prefill_bytes(self) -> int:
        """Shared memory of one block: Q, K or V, weights, how each row merges."""
        row, keys = self.head_dim + 32, self.queries
        return 4 * (self.queries * row + keys * row + self.queries * (STRIPE_KEYS + 4 + 5))

    @property
    def decode_bytes(self) -> int:
        """Shared memory of one block of attention_stripes: K, V, q and p."""
        of_heads = 4 * self.share * (self.head_dim + STRIPE_KEYS)
        return 4 * STRIPE_KEYS * (self.head_dim + 8) + of_heads


def up(count: int, size: int) -> int:
    """Pieces of so many that hold count."""
    return -(-count // size)


def matmul_launch(kind: str, num_tokens: int, rows: int) -> MatmulLaunch:
    """For a quantised kind."""
    tiles = up(rows, 16)
    if num_tokens <= FEW_TOKENS:
        kernel = f"matmul_{kind}_few_{num_tokens}"
        return MatmulLaunch(kernel, (tiles,), 128, FEW_BYTES * num_tokens, True)
    if num_tokens <= SOME_TOKENS:
        groups = up(num_tokens, 16)
        each = 2 if tiles * groups >= 4 * MULTIPROCESSORS else 1  # tiles of a block
        return MatmulLaunch(f"matmul_{kind}_some_{each}", (up(tiles, each), groups), 256, 0, False)
    grid = up(num_tokens, 64), up(rows, 128)
    return MatmulLaunch(f"matmul_{kind}_many", grid, 256, MANY_BYTES, False)


def most_stripes(num_keys: int, shape: AttentionShape) -> int:
    """Stripes that a token at position num_keys - 1, or before it, can see some keys of."""
    of_window = (shape.window + STRIPE_KEYS - 2) // STRIPE_KEYS + 1
    return min(up(num_keys, STRIPE_KEYS), of_window)


def stripes_bytes(stripes: int, shape: AttentionShape) -> int:
    """Scratch memory of one token: what so many stripes leave to be merged."""
    return shape.heads * stripes * (shape.head_dim + 2) * 4


def prefill_tokens(shape: AttentionShape) -> int:
    """Tokens of one block of attention_prefill.cu."""
    return shape.queries // shape.share


def regions_of(
    seq_index: I32, positions: I32, shape: AttentionShape
) -> list[tuple[int, int, bool]]:
    """The step's tokens as (begin, end, whether attention_prefill.cu takes them), in order."""
    edges = np.flatnonzero((np.diff(seq_index) != 0) | (np.diff(positions) != 1)) + 1
    begins, ends = [0, *edges.tolist()], [*edges.tolist(), len(seq_index)]
    can = shape.head_dim in PREFILL_DIMS and shape.share <= shape.queries
    regions: list[tuple[int, int, bool]] = []
    for begin, end in zip(begins, ends, strict=True):
        is_long = can and end - begin >= PREFILL_TOKENS
        if regions and regions[-1][2] == is_long:
            regions[-1] = (regions[-1][0], end, is_long)
        else:
            regions.append((begin, end, is_long))
    return regions
