"""Random numbers that depend on where they are used, not on when.

Philox-4x32-10 is a function of a key and a counter, without state: a job taken over by another
worker, or run beside other jobs, draws the same numbers. Source: Salmon et al. 2011, "Parallel
random numbers: as easy as 1, 2, 3"; the known answers in the tests are from the authors' Random123
distribution.
"""

from typing import Final

MULTIPLIER_0: Final = 0xD2511F53
MULTIPLIER_1: Final = 0xCD9E8D57
WEYL_0: Final = 0x9E3779B9
WEYL_1: Final = 0xBB67AE85
WORD: Final = 0xFFFFFFFF
ROUNDS: Final = 10


def philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Four random 32-bit words for a counter of four and a key of two 32-bit words."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        product_0 = MULTIPLIER_0 * c0
        product_1 = MULTIPLIER_1 * c2
        c0, c1 = (product_1 >> 32) ^ c1 ^ k0, product_1 & WORD
        c2, c3 = (product_0 >> 32) ^ c3 ^ k1, product_0 & WORD
        k0 = (k0 + WEYL_0) & WORD
        k1 = (k1 + WEYL_1) & WORD
    return c0, c1, c2, c3


def uniform(seed: int, choice: int, position: int) -> float:
    """A number in [0, 1) with 53 random bits.

    seed      0..2^64-1, the request's
    choice    which of several answers to one request; its own request, with that number
    position  of the drawn token in its sequence, counted from the first prompt token
    """
    counter = (position & WORD, position >> 32, choice, 0)
    high, low, _, _ = philox(counter, (seed & WORD, seed >> 32))
    return ((high << 21) | (low >> 11)) * 2.0**-53
