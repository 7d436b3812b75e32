"""What becomes of a message that the router has read: a held request, refused, or kept for later.

entry ──read_entry──► fields ──admit──► Request ──► Placer.hold
            │                     └────► Reject ──► refused, or later: a pool that loads may
            └──► poison, undecodable: refused       hold what those that are ready cannot
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from router.admit import Door, Reject, admit
from router.consumer import Consumer, Entry
from router.dispatch import refuse, refuse_message
from router.entry import read_entry
from router.placing import Held, Placer
from router.pools import wanted_of
from router.refusal import Refused
from router.sight import Sight
from router.typical import Typical
from workers.address import Networks
from workers.clock import now_ms
from workers.sla import SlaTable
from workers.store import Store
from workers.text.text_model import TextModel

READ_ATTEMPTS: Final = 2  # times max_attempts: then a poison message is not even decoded
LATER_MOST: Final = 256


class Taker:
    """One router's."""

    def __init__(
        self,
        store: Store,
        consumer: Consumer,
        sight: Sight,
        table: SlaTable,
        *,
        text: TextModel,
        allow: Networks,
        typical: Typical,
        placer: Placer,
    ) -> None:
        self.store, self.consumer, self.sight, self.table = store, consumer, sight, table
        self.text, self.allow = text, allow
        self.typical, self.placer = typical, placer
        self.later: list[Entry] = []  # too large for the pools that are ready, while one loads

    def take(self, entry: Entry) -> None:
        """One message."""
        if entry.deliveries > READ_ATTEMPTS * self.store.max_attempts:
            self.refuse(entry, poison(entry), {})  # to look into it may be what ends us
            return
        try:
            fields, plain = read_entry(entry.fields)
        except Refused as refused:
            self.refuse(entry, refused, {})
            return
        if entry.deliveries > self.store.max_attempts:
            self.refuse(entry, poison(entry), fields)
            return
        self.take_request(entry, fields, plain)

    def take_request(self, entry: Entry, fields: Mapping[str, Any], plain: bool) -> None:
        """fields: what the message says.   plain: as strings, as written with redis-cli"""
        longest = self.sight.longest()
        door = Door(self.text, now_ms(), self.allow, longest, self.table.names)
        request = admit(fields, door, sla=entry.sla, entry_id=entry.arrived, plain=plain)
        request_id = request.request_id if isinstance(request, Reject) else request.id
        if not self.is_alone(entry, request_id):
            return
        if isinstance(request, Reject):
            is_too_large = request.code == "too_large" or request.field == "max_tokens"
            if is_too_large and self.sight.is_loading() and len(self.later) < LATER_MOST:
                self.later.append(entry)
            else:
                refuse(self.store, entry, request)
            return
        session = self.store.session(request.session) if request.session else {}
        wanted = wanted_of(request, session)
        self.typical.saw(wanted.sla, wanted.uncached, wanted.max_tokens)
        home = session.get("pool") if request.session else None
        self.placer.hold(Held(entry, request, wanted, home))

    def is_alone(self, entry: Entry, request_id: str | None) -> bool:
        """Whether nothing is held under its id any more; else the message is let go.

        One that is held itself comes again when nobody has said for long that it is in good hands:
        this router was too slow to, and took it for abandoned. It stays held.
        """
        if self.placer.has(entry):
            return False
        if self.placer.holds(request_id):
            self.placer.place_all()
        if not self.placer.holds(request_id):
            return True
        if not self.is_the_doors(entry, request_id):
            self.consumer.let_go(entry)  # the first one of an id stands
            return False
        self.placer.drop(request_id)
        return True

    def is_the_doors(self, entry: Entry, request_id: str | None) -> bool:
        """Whether the HTTP door took its request as this message, or it was promoted to be it: what
        is held under that id came otherwise, or is out of its stream already."""
        assert request_id is not None, "what is held has an id"
        known = self.store.redis.hget(self.store.keys.job(request_id), "entry")
        return known == entry.entry_id.encode()

    def taken_later(self) -> Iterable[Entry]:
        """What only a loading pool may hold, once that is ready or gone."""
        if not self.later or self.sight.is_loading():
            return ()
        entries, self.later = self.later, []
        return entries

    def refuse(self, entry: Entry, refused: Refused, fields: Mapping[str, Any]) -> None:
        """Refuses a message that is not to be admitted, whatever it asks for."""
        refuse_message(self.store, self.allow, entry, refused, fields)


def poison(entry: Entry) -> Refused:
    """Why a message is not tried again."""
    reason = f"whoever read it ended, {entry.deliveries - 1} times in a row"
    return Refused("request", reason, "poison")
