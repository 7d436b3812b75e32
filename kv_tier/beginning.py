"""How much of some tokens need not be computed, by what is in RAM and in files: a pure decision.

    tokens    | block | block | block | tail |  not known ...        last
    has        file    RAM     file     file                          is always computed
    end at 3 * 256 + the tail's tokens; with recurrent state: at the last such place that has one

KV can be used up to any place, also inside a block. Recurrent state cannot be cut back, so a model
that has it begins where a state is: at the end of a turn, or where a block ends.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from kv_tier.chain import BLOCK_TOKENS, Chain
from kv_tier.format import Kind
from kv_tier.names import name_of

Place = Literal["ram", "file", ""]  # "": nowhere
Where = Callable[[Kind, bytes], Place]
Piece = tuple[Kind, bytes, int]  # kind, key, num_tokens as its file says


@dataclass(frozen=True, slots=True)
class Beginning:
    """What to use.

    end      tokens [0, end) are known
    pieces   all that is needed for that, in RAM or not, parents before children
    files    those of them that have to be read from files
    """

    end: int = 0
    pieces: tuple[Piece, ...] = ()
    files: tuple[Piece, ...] = ()


class Beginnings:
    """Of one prompt.

    keys  of all full blocks of the tokens
    ends  where a tail or a state may lie: ascending, each in [1, len(token_ids) - 1]
    """

    def __init__(
        self, chain: Chain, token_ids: Sequence[int], ends: Sequence[int], *, has_state: bool
    ) -> None:
        self._chain, self._token_ids, self._has_state = chain, token_ids, has_state
        self._limit = len(token_ids) - 1  # one is left to compute
        self.keys = chain.block_keys(token_ids)
        self.ends = tuple(sorted({end for end in ends if 0 < end <= self._limit}))

    def longest(self, where: Where) -> Beginning:
        """The longest that can be used."""
        places: list[Place] = []
        for key in self.keys:
            place = where("block", key)
            if not place:
                break
            places.append(place)
        for end in self._places_to_end(len(places)):
            leaves = self._leaves(end, places, where)
            if all(place for _, place in leaves):
                return self._beginning(end, leaves, places)
        return Beginning()

    def _places_to_end(self, num_blocks: int) -> Iterator[int]:
        """Longest first: where blocks end, the given ends, and all tokens but the last."""
        ends = {*self.ends, *(BLOCK_TOKENS * (i + 1) for i in range(num_blocks)), self._limit}
        for end in sorted(ends, reverse=True):
            if 0 < end <= self._limit and end // BLOCK_TOKENS <= num_blocks:
                yield end

    def _leaves(self, end: int, places: Sequence[Place], where: Where) -> list[tuple[Piece, Place]]:
        """What is needed to end there, besides the whole blocks before it."""
        key = self._key_at(end)
        leaves: list[tuple[Piece, Place]] = []
        if end % BLOCK_TOKENS:
            leaves.append(self._part(end, key, places, where))
        if self._has_state:
            leaves.append((("state", key, end), where("state", key)))
        return leaves

    def _part(
        self, end: int, key: bytes, places: Sequence[Place], where: Where
    ) -> tuple[Piece, Place]:
        """What ends inside a block: a tail, or the beginning of the full block."""
        index = end // BLOCK_TOKENS
        place: Place = places[index] if index < len(places) else ""
        if place != "ram":
            tail = where("tail", key)
            if tail or not place:
                return ("tail", key, end % BLOCK_TOKENS), tail
        return ("block", self.keys[index], BLOCK_TOKENS), place

    def _beginning(
        self, end: int, leaves: list[tuple[Piece, Place]], places: Sequence[Place]
    ) -> Beginning:
        keys = self.keys[: end // BLOCK_TOKENS]
        blocks: list[Piece] = [("block", key, BLOCK_TOKENS) for key in keys]
        found = [*zip(blocks, places, strict=False), *leaves]
        files = tuple(piece for piece, place in found if place == "file")
        return Beginning(end, tuple(piece for piece, _ in found), files)

    def _key_at(self, end: int) -> bytes:
        full = end // BLOCK_TOKENS
        parent = self.keys[full - 1] if full else self._chain.start
        rest = self._token_ids[full * BLOCK_TOKENS : end]
        return self._chain.next(parent, rest) if rest else parent


def piece_name(piece: Piece) -> bytes:
    """What the ledger calls it."""
    return name_of(piece[0], piece[1])
