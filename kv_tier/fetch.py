"""The longest usable beginning of a prompt is looked up, opened, brought in and checked.

    keys of the tokens ─► what is in RAM, which files exist ─► open ─► worth it? ─► verify ─► Prefix
          ▲                                                    │         │ no        │
          └────── a bad file is dropped, and counts as missing ┴─────────│───────────┘
                                                          what is in RAM ┘

A fetch never fails a request, and never gives a part of a file: whatever is wrong, the hit is
shorter.
"""

import errno
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import structlog

from kv_tier.beginning import Beginning, Beginnings, Piece, Place, piece_name
from kv_tier.chain import Chain
from kv_tier.counters import Counters
from kv_tier.files import DiskError
from kv_tier.format import CorruptFile, Kind
from kv_tier.ledger import Ledger
from kv_tier.loader import Failure, Loader, Tier, bytes_by_tier, tier_of
from kv_tier.names import kind_and_key, name_of
from kv_tier.objects import ObjectStore
from kv_tier.open_object import OpenObject
from kv_tier.prefix import Prefix, Resident, Sizes, state_name

log = structlog.get_logger(part="kv")
OURS: Final = {  # shortages of this process: nothing is wrong with the file
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
    errno.EAGAIN,
    errno.EACCES,
}


@dataclass(slots=True)
class Search:
    """One fetch under way: what was asked for, what was opened so far, what turned out bad."""

    beginnings: Beginnings
    sizes: Sizes
    resident: Resident
    opened: dict[bytes, OpenObject] = field(default_factory=dict)
    tiers: dict[bytes, Tier] = field(default_factory=dict)  # where it lay when it was opened
    verified: set[bytes] = field(default_factory=set)
    lost: set[bytes] = field(default_factory=set)

    def unverified(self) -> dict[bytes, OpenObject]:
        """Those whose payload nobody has looked at."""
        return {name: one for name, one in self.opened.items() if name not in self.verified}

    def close_others(self, wanted: Sequence[Piece]) -> None:
        """Close what is not used after all."""
        names = {piece_name(piece) for piece in wanted}
        for name in self.opened.keys() - names:
            self.opened.pop(name).close()


class Fetcher:
    """Thread-safe."""

    def __init__(
        self, objects: ObjectStore, ledger: Ledger, loader: Loader, counters: Counters
    ) -> None:
        self._objects, self._ledger = objects, ledger
        self._loader, self._counters = loader, counters

    def fetch(
        self,
        chain: Chain,
        token_ids: Sequence[int],
        sizes: Sizes,
        *,
        ends: Sequence[int],
        resident: Resident,
        prefill_tokens_per_s: float,
    ) -> Prefix:
        """As KvTier.fetch."""
        beginnings = Beginnings(chain, token_ids, ends, has_state=sizes.state_bytes > 0)
        search = Search(beginnings, sizes, resident)
        try:
            found = self._found(search, prefill_tokens_per_s)
            by_tier = bytes_by_tier(search.opened, search.tiers)
            if found.end:
                with suppress(DiskError):  # only books
                    self._ledger.touch([piece_name(piece) for piece in found.pieces])
        except BaseException:
            search.close_others(())
            raise
        self._count(found, by_tier, prefill_tokens_per_s)
        return _prefix(search, found)

    def _found(self, search: Search, prefill_tokens_per_s: float) -> Beginning:
        """All files that it needs are verified, and no others are open."""
        while True:
            found = search.beginnings.longest(lambda kind, key: self._place(search, kind, key))
            search.close_others(found.files)
            if not self._open(search, found):
                continue
            if not self._is_worth_it(search, found, prefill_tokens_per_s):
                in_ram = search.beginnings.longest(lambda kind, key: _in_ram(search, kind, key))
                search.close_others(())
                return in_ram
            if self._verify(search):
                return found

    def _place(self, search: Search, kind: Kind, key: bytes) -> Place:
        if _in_ram(search, kind, key):
            return "ram"
        name = name_of(kind, key)
        if name in search.lost:
            return ""
        return "file" if name in search.opened or self._objects.has(kind, key) else ""

    def _open(self, search: Search, found: Beginning) -> bool:
        """False: a file is missing or bad, look again."""
        missing = [one for one in found.files if piece_name(one) not in search.opened]
        opened, failures = self._loader.open(missing, search.sizes)
        search.opened |= opened
        search.tiers |= {name: tier_of(one) for name, one in opened.items()}
        self._note(search, failures)
        return not failures

    def _verify(self, search: Search) -> bool:
        """False: a file is bad, look again."""
        new = search.unverified()
        failures = self._loader.verify(new, bytes_by_tier(new, search.tiers))
        self._note(search, failures)
        search.verified |= new.keys() - failures.keys()
        return not failures

    def _is_worth_it(self, search: Search, found: Beginning, prefill_tokens_per_s: float) -> bool:
        """Whether reading what is missing takes less time than computing it."""
        new = search.unverified()
        if not new or prefill_tokens_per_s <= 0:
            return True
        in_ram = search.beginnings.longest(lambda kind, key: _in_ram(search, kind, key))
        recompute_s = (found.end - in_ram.end) / prefill_tokens_per_s
        if self._loader.speeds.seconds(bytes_by_tier(new, search.tiers)) <= recompute_s:
            return True
        self._loader.speeds.skipped()
        self._counters.add(skipped=1, skipped_tokens=found.end - in_ram.end)
        return False

    def _note(self, search: Search, failures: Mapping[bytes, Failure]) -> None:
        """A bad file is dropped, so that nobody meets it twice."""
        for name, failure in failures.items():
            search.lost.add(name)
            opened = search.opened.pop(name, None)
            if opened is not None:
                opened.close()
            if is_bad(failure):
                self._counters.add(bad_files=1)
                log.warning("a file of KV is bad and is dropped", error=str(failure))
                with suppress(DiskError):
                    self._objects.drop(*kind_and_key(name))
            if not isinstance(failure, DiskError) or is_bad(failure):
                with suppress(DiskError):
                    self._ledger.forget([name])

    def _count(
        self, found: Beginning, by_tier: Mapping[Tier, int], prefill_tokens_per_s: float
    ) -> None:
        """Hits, and what they saved, by where it came from."""
        if not found.end:
            self._counters.add(misses=1)
            return
        from_files = sum(num_tokens for kind, _, num_tokens in found.files if kind != "state")
        from_files = min(from_files, found.end)  # a block may be used in part
        total = sum(by_tier.values())
        share = by_tier["cache"] / total if total else 0.0
        saved_s = found.end / prefill_tokens_per_s if prefill_tokens_per_s > 0 else 0.0
        self._counters.add(
            hits=1,
            tokens_ram=found.end - from_files,
            tokens_cache=round(from_files * share),
            tokens_disk=from_files - round(from_files * share),
            bytes_cache=by_tier["cache"],
            bytes_disk=by_tier["disk"],
            seconds_saved=max(0.0, saved_s - self._loader.speeds.seconds(by_tier)),
        )


def is_bad(failure: Failure) -> bool:
    """Whether the file is to blame, and has to go: not when it is gone, nor a shortage of ours."""
    if isinstance(failure, DiskError):
        return failure.number not in OURS
    return isinstance(failure, CorruptFile)


def _in_ram(search: Search, kind: Kind, key: bytes) -> Place:
    return "ram" if search.resident(state_name(key) if kind == "state" else key) else ""


def _prefix(search: Search, found: Beginning) -> Prefix:
    """What the engine is given; the files are its from now on."""
    prefix = Prefix(keys=search.beginnings.keys, ends=search.beginnings.ends, end=found.end)
    for piece in found.files:
        opened = search.opened[piece_name(piece)]
        if piece[0] == "block":
            prefix.blocks[piece[1]] = opened
        elif piece[0] == "tail":
            prefix.tail, prefix.tail_end = opened, found.end
        else:
            prefix.state, prefix.state_end = opened, found.end
    return prefix
