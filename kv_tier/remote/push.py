"""A session goes to the object store: what is not there yet, and then the manifest that names it.

    its head ─► the fleet's names ─► which objects are there? ─► send the others ─► is it still so?
             ─► the manifest ─► older ones of it go

Whoever reads a manifest there finds its objects sent before it. A later owner's manifest has a
greater name, so that a node which comes late with an old one changes nothing.
"""

import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Final

from kv_tier.fetch import is_bad
from kv_tier.files import DiskError
from kv_tier.fork import NoSession
from kv_tier.format import CorruptFile
from kv_tier.loader import verify_one
from kv_tier.manifest import Manifest, encode_manifest
from kv_tier.names import Link, kind_and_key, links_of
from kv_tier.open_object import Missing, open_file
from kv_tier.remote.bucket import NotThere
from kv_tier.remote.parcel import packed
from kv_tier.remote.places import object_place, place_of, version_of
from kv_tier.remote.pull import read_manifest, versions
from kv_tier.remote.quota import note_sent, refuse_over
from kv_tier.remote.remote import Remote, groups_of
from kv_tier.renamed import pairs_of, renamed

FRESH_MS: Final = 12 * 3_600_000  # written so lately, an object that nobody names stays (sweep.py)
Pair = tuple[Link, Link]
Progress = Callable[[int, int], object]  # objects done, objects in all


@dataclass(frozen=True, slots=True)
class Pushed:
    """What went over.

    is_new   False: the store had this version of the session, or a later one
    sent     objects; known: those that were there; left: those that nobody has whole here
    """

    manifest: Manifest
    is_new: bool = True
    sent: int = 0
    known: int = 0
    left: int = 0
    num_bytes: int = 0


class Superseded(Exception):
    """The session was changed or deleted while it was sent."""


def push(
    remote: Remote,
    tenant: str,
    session_id: str,
    *,
    trusts: bool = True,
    stops: Callable[[], bool] = lambda: False,
    progress: Progress = lambda done, of: None,
) -> Pushed:
    """Send a session.

    trusts  what this node noted of the store; False: it is asked for everything
    stops   asked between objects; true: Superseded is raised

    Raises NoSession, Superseded, StoreError, BadName, DiskError.
    """
    own = remote.tier.sessions.head(tenant, session_id)
    if own is None:
        raise NoSession(tenant, session_id)
    shared = renamed(own, remote.chain(tenant, own.fingerprint))
    there = versions(remote.bucket, tenant, session_id)
    if there and (there[0] > version_of(own) or (trusts and there[0] == version_of(own))):
        remote.known.note_session(own)
        return Pushed(own, is_new=False)
    before = read_manifest(remote.bucket, tenant, session_id, there[0]) if there else None
    known = remote.known.written_ms(link.name for link in links_of(shared)) if trusts else {}
    missing = _missing(remote, shared, pairs_of(own, shared), before, known)
    done = _send_all(remote, own, missing, stops, progress)
    _check_still(remote, own)
    remote.bucket.put(place_of(tenant, session_id, version_of(own)), [encode_manifest(shared)])
    for version in there:
        if version < version_of(own):
            remote.bucket.delete(place_of(tenant, session_id, version))
    remote.known.note_session(own)
    remote.count(pushed_sessions=1)
    num_known = len(links_of(own)) - len(missing)
    return Pushed(own, True, len(done), num_known, len(missing) - len(done), sum(done))


def _missing(
    remote: Remote,
    shared: Manifest,
    pairs: list[Pair],
    before: Manifest | None,
    known: dict[bytes, int],
) -> list[Pair]:
    """What has to be sent. An object that no manifest names may be taken away by a collector: so
    it counts as there only if it was written lately, or if this session's manifest names it.
    """
    named = {link.name for link in links_of(before)} if before else set()
    oldest = remote.now_ms() - FRESH_MS

    def written_ms(pair: Pair) -> int | None:
        name = pair[1].name
        if name in known and (name in named or known[name] >= oldest):
            return known[name]
        try:
            found = remote.bucket.head(object_place(shared.tenant, name))
        except NotThere:
            return None
        return found.changed_ms if name in named or found.changed_ms >= oldest else None

    answers = list(zip(pairs, remote.each(written_ms, pairs), strict=True))
    there = [(theirs.name, written) for (_, theirs), written in answers if written is not None]
    remote.known.note(there)
    remote.count(known_objects=len(there))
    return [pair for pair, written in answers if written is None]


def _send_all(
    remote: Remote,
    own: Manifest,
    pairs: list[Pair],
    stops: Callable[[], bool],
    progress: Progress,
) -> list[int]:
    """Bytes of each that was sent; what is gone or damaged here is not."""
    sizes = {mine.name: _size(remote, mine) for mine, _ in pairs}
    sent: list[int] = []
    for group in groups_of(pairs, lambda pair: sizes[pair[0].name]):
        if stops():
            raise Superseded
        refuse_over(remote, own.tenant, sum(sizes[mine.name] for mine, _ in group))
        begin, begun_ms = time.monotonic(), remote.now_ms()
        amounts = remote.each(lambda pair: _send(remote, own.tenant, *pair), group)
        names = [theirs.name for (_, theirs), n in zip(group, amounts, strict=True) if n]
        remote.known.note([(name, begun_ms) for name in names])
        seconds = time.monotonic() - begin
        remote.count(sent_objects=len(names), sent_bytes=sum(amounts), sent_s=seconds)
        note_sent(remote, own.tenant, sum(amounts))
        sent += [amount for amount in amounts if amount]
        progress(len(sent), len(pairs))
        if remote.bytes_per_s:
            remote.rest(max(0.0, sum(amounts) / remote.bytes_per_s - seconds))
    return sent


def _size(remote: Remote, own: Link) -> int:
    with suppress(FileNotFoundError):
        return remote.tier.objects.path(*kind_and_key(own.name)).stat().st_size
    return 0


def _send(remote: Remote, tenant: str, own: Link, shared: Link) -> int:
    """Bytes; 0: there is no such object here, or it is damaged."""
    try:
        opened = open_file(remote.tier.objects.path(*kind_and_key(own.name)))
    except (Missing, CorruptFile):
        return 0
    with closing(opened):
        try:
            verify_one(opened)
        except (CorruptFile, DiskError) as failure:
            if isinstance(failure, DiskError) and not is_bad(failure):
                raise
            return 0
        return remote.bucket.put(object_place(tenant, shared.name), packed(opened, shared))


def _check_still(remote: Remote, own: Manifest) -> None:
    """Raises Superseded: what was sent meanwhile stays for whoever sends the next version."""
    head = remote.tier.sessions.head(own.tenant, own.session_id)
    if head is None or version_of(head) != version_of(own):
        raise Superseded
