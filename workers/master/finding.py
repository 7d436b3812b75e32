"""Who is the store's master just now: asked whenever a connection is made, and whenever in doubt.

    one server     it is where the URL says; its name may lead elsewhere after a failover
    a Cluster      any node knows who serves our slot; one whose Cluster is not well is not believed
    Sentinels      redis-py's client of theirs asks them

What they say may be old, for some seconds of a failover. So whoever connects there looks whether it
is a master (connection.py), and says here if it is not: then another one is asked first.
"""

import time
from collections.abc import Callable, Collection, Mapping
from threading import Lock
from typing import Any, Final

from redis import Redis
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.exceptions import AuthenticationError, RedisError
from redis.exceptions import ConnectionError as StoreAway
from redis.retry import Retry
from redis.sentinel import Sentinel

from workers.master.address import Place, StoreUrl, check_prefix

ASK_S: Final = 1.0  # to connect to one who may know, and to hear what it says
Ask = Callable[[bool], Place]  # given: whether the last answer was wrong


class NoMaster(StoreAway):
    """Nobody can say where the master is."""


class Master:
    """Where the master is. Safe to share between threads.

    term  counts masters: a connection of an earlier term leads to somebody else
    """

    def __init__(self, ask: Ask) -> None:
        self.ask = ask
        self.term = 0
        self.place: Place | None = None
        self.is_doubted = False
        self._failure: Exception | None = None
        self._asked_at = float("-inf")
        self._asking, self._counting = Lock(), Lock()

    def find(self) -> tuple[Place, int]:
        """Its place and its term. Raises NoMaster, or what those who know have raised.

        Those who come while somebody asks get the same answer.
        """
        came_at = time.monotonic()
        with self._asking:
            if self._asked_at < came_at:
                self._hear()
            elif self._failure is not None:
                raise NoMaster(str(self._failure)) from None
            assert self.place is not None, "an answer or a failure"
            return self.place, self.term

    def _hear(self) -> None:
        try:
            place = self.ask(self.is_doubted)
        except (RedisError, OSError) as error:
            self._failure = error
            raise
        finally:
            self._asked_at = time.monotonic()
        self._failure, self.is_doubted = None, False
        if place != self.place:
            self.place = place
            self._next(self.term)

    def doubt(self, term: int, *, is_other: bool) -> None:
        """The master of a term does not answer; is_other: it does, and is none."""
        self.is_doubted = True
        if is_other:
            self._next(term)

    def _next(self, term: int) -> None:
        """The term is over; many may say so of the same one."""
        with self._counting:
            if term == self.term:
                self.term += 1


class Cluster:
    """Nodes of a Cluster. options: of a connection to any of them."""

    def __init__(self, places: tuple[Place, ...], slot: int, options: Mapping[str, Any]) -> None:
        self.named, self.places = places, list(places)
        self.slot, self.options = slot, options

    def ask(self, was_wrong: bool) -> Place:
        """The slot's master, from the first node that can say.

        Raises NoMaster, or AuthenticationError.
        """
        asked = self.places[1:] + self.places[:1] if was_wrong else list(self.places)
        silent: dict[Place, Exception] = {}
        for place in asked:
            try:
                found, others = self.told_by(place)
            except (RedisError, OSError) as error:
                silent[place] = error
                continue
            self.remember([*asked, *others], {*self.named, *others}, silent)
            return found
        for refusal in silent.values():
            if isinstance(refusal, AuthenticationError):
                raise refusal
        why = "; ".join(f"{host}:{port}: {error}" for (host, port), error in silent.items())
        raise NoMaster(f"no node of the Cluster says who serves slot {self.slot}: {why}")

    def remember(
        self, known: list[Place], valid: Collection[Place], silent: Collection[Place]
    ) -> None:
        """Whom to ask next time: the silent ones last, and none that has left the Cluster."""
        there = [place for place in dict.fromkeys(known) if place in valid]
        self.places = sorted(there, key=lambda place: place in silent)

    def told_by(self, place: Place) -> tuple[Place, list[Place]]:
        """The slot's master and all nodes. Raises NoMaster, or redis' errors."""
        with Redis(**self.options, host=place[0], port=place[1]) as node:
            info: Any = node.execute_command("CLUSTER INFO")
            slots: Any = node.execute_command("CLUSTER SLOTS")
        if info.get("cluster_state") != "ok":
            raise NoMaster(f"says that its Cluster is not well: {info.get('cluster_state')}")
        here = [one for begin, end, one, *_ in slots if begin <= self.slot <= end]
        if not here:
            raise NoMaster("says that nobody serves the slot")
        nodes = [node for _, _, *served in slots for node in served]
        return place_of(here[0], place), [place_of(node, place) for node in nodes]


def place_of(told: Any, asked: Place) -> Place:
    """Of a node as CLUSTER SLOTS tells it: one without a host of its own is where we asked."""
    host = (told[0] or b"").decode()
    return (host if host not in ("", "?") else asked[0]), int(told[1])


class Sentinels:
    """Of one master, by name. options: of a connection to a Sentinel."""

    def __init__(self, places: tuple[Place, ...], service: str, options: Mapping[str, Any]) -> None:
        self.client = Sentinel(list(places), sentinel_kwargs=options)  # type: ignore[no-untyped-call]
        self.service = service

    def ask(self, was_wrong: bool) -> Place:
        """As the first Sentinel says that knows it, and that it is up. Raises redis' errors."""
        sentinels = self.client.sentinels
        if was_wrong:
            sentinels.append(sentinels.pop(0))
        host, port = self.client.discover_master(self.service)  # type: ignore[no-untyped-call]
        return str(host), int(port)


def master_of(url: StoreUrl, prefix: str) -> Master:
    """Of whom holds the keys with a prefix. Raises BadUrl."""
    check_prefix(url, prefix)
    quick = {
        "ssl": url.is_tls,
        "socket_timeout": ASK_S,
        "socket_connect_timeout": ASK_S,
        "retry": Retry(NoBackoff(), 0),
    }
    if url.kind == "cluster":
        slot = key_slot(prefix.encode())
        return Master(Cluster(url.places, slot, {**url.options, **quick}).ask)
    if url.kind == "sentinel":
        return Master(Sentinels(url.places, url.service, {**url.sentinel, **quick}).ask)
    (place,) = url.places
    return Master(lambda _: place)
