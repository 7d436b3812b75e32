"""Which objects go when room is wanted: a pure decision (GDSF with aging).

    value = clock when it was last used + hits * seconds saved / MiB
    order   what no session names  ->  what nobody used for a TTL  ->  lowest value, oldest use

The clock is the value of the object that went last, so what is used no more is overtaken by
whatever is used now, however often it was hit before. Source: Cherkasova 1998, HPL-98-69R1.

An object is of no use without the one before it in its chain (its parent). So a parent counts as
much as its best child, equal values go from the end of the chain, and what may not go keeps
everything before it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

MIB: Final = 1 << 20
Rank = tuple[int, float, int, int, bool]  # who goes first: the smallest
NOBODYS, TOO_OLD, IN_USE = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Candidate:
    """One object, as the policy sees it.

    name       of the object, unique
    value      as gdsf_value gave it when it was last used
    used_ms    Unix time of that
    depth      tokens before its end; a child's is larger than its parent's, but for a state's
    is_leaf    a tail or a state: nothing follows it
    parent     name of the block before it in its chain; empty: the first, or unknown
    is_named   some session's manifest names it
    is_held    pinned, or fetched just now, or not committed yet: it may not go
    """

    name: bytes
    num_bytes: int
    value: float
    used_ms: int
    depth: int = 0
    is_leaf: bool = False
    parent: bytes = b""
    is_named: bool = True
    is_held: bool = False


def gdsf_value(clock: float, hits: int, seconds: float, num_bytes: int) -> float:
    """What keeping an object is worth: cost saved per byte, on top of the clock of evictions.

    seconds  that computing it takes
    """
    assert num_bytes > 0 and hits >= 0 and seconds >= 0, (num_bytes, hits, seconds)
    return clock + hits * seconds * MIB / num_bytes


def choose(
    candidates: Iterable[Candidate], bytes_wanted: int, now_ms: int, *, ttl_ms: int = 0
) -> list[Candidate]:
    """What goes, first to last: as little as gives bytes_wanted, or all that may go.

    ttl_ms  after which an object that nobody used is too old; 0: never
    """
    ranks = _ranks(sorted(candidates, key=_from_the_end), now_ms - ttl_ms if ttl_ms else 0)
    chosen, num_bytes = [], 0
    for candidate, _ in sorted(ranks, key=lambda pair: pair[1]):
        if num_bytes >= bytes_wanted:
            break
        chosen.append(candidate)
        num_bytes += candidate.num_bytes
    return chosen


def clock_after(clock: float, gone: Iterable[Candidate]) -> float:
    """The clock of evictions after these went; it never goes back."""
    return max([clock, *(one.value for one in gone if one.is_named)])


def _from_the_end(candidate: Candidate) -> tuple[int, bool]:
    return (-candidate.depth, not candidate.is_leaf)


def _ranks(children_first: Sequence[Candidate], too_old_ms: int) -> list[tuple[Candidate, Rank]]:
    """Of each that may go; a parent's is that of its best child, if better than its own."""
    best: dict[bytes, tuple[int, float, int]] = {}  # of its children
    kept: set[bytes] = set()
    ranks = []
    for candidate in children_first:
        if candidate.is_held or candidate.name in kept:
            kept.add(candidate.parent)
            continue
        own = (_class_of(candidate, too_old_ms), candidate.value, candidate.used_ms)
        rank = max(own, best.get(candidate.name, own))
        best[candidate.parent] = max(rank, best.get(candidate.parent, rank))
        ranks.append((candidate, (*rank, *_from_the_end(candidate))))
    return ranks


def _class_of(candidate: Candidate, too_old_ms: int) -> int:
    if not candidate.is_named:
        return NOBODYS
    return TOO_OLD if candidate.used_ms < too_old_ms else IN_USE
