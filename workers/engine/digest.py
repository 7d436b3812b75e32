"""The digest on every answer: a chain over tokens and the bits of their logits.

    d_-1 = xxh3_64("ARITHMETIC_VERSION:weights digest")
    d_t  = xxh3_64(d_(t-1) u64, token id u32, logits sum u64)       little-endian, without padding

Two answers with equal digests came from the same weights, by the same arithmetic, through the same
logits.
"""

from struct import Struct
from typing import Final

from xxhash import xxh3_64_intdigest

LINK: Final = Struct("<QIQ")


def first_link(arithmetic_version: str | int, weights_digest: str) -> int:
    """The chain's value before the first token."""
    return xxh3_64_intdigest(f"{arithmetic_version}:{weights_digest}".encode())


def next_link(link: int, token_id: int, logits_sum: int) -> int:
    """The chain's value after token_id; logits_sum is what ops.logits_sum made of its row."""
    return xxh3_64_intdigest(LINK.pack(link, token_id, logits_sum))


def link_text(link: int) -> str:
    """16 hex digits, as events carry it."""
    return f"{link:016x}"


def parse_link(text: str) -> int:
    """The inverse of link_text."""
    assert len(text) == 16, text
    return int(text, 16)
