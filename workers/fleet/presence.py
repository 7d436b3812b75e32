"""A node of a fleet says each second that it lives and what it is; the others hear who is gone.

    say ──heard.lua──► may it take part?   ""  it does
         by the server's clock              "name", "identity": another one says otherwise
                                            its own: a clock that is wrong

What does not take part reads no requests and takes over none: it works off what its pools have, and
says why it does nothing else. A mixed answer cannot come of it: a pool of other weights than its
fleet's begins nothing (claim.lua).
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

import msgspec

from workers.script import texts
from workers.store_client import StoreClient

CLOCK_MOST_MS: Final = 10_000  # deadlines are Unix times: a clock further off would break them
NO_SPEED: Final = 1e-6


class NodeReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a node says of itself, once a second.

    instance    the name of its LOCKSTEP_HOME
    since_ms    Unix time at which its router began
    version     of the program
    weights     digest of the model's weights; arithmetic: version and tables
    clock_ms    by how much its clock is ahead of the store's; negative: behind
    speed       requests of 256 and 256 tokens that its ready pools end in a second; 0: none yet
    share       of all nodes' speeds, 0 to 1
    longest     tokens of the longest sequence that one of its pools holds; 0: not said
    refused     why it takes no requests, in words; "": it does
    """

    node: str
    instance: str = ""
    host: str = ""
    since_ms: int = 0
    version: str = ""
    model: str = ""
    weights: str = ""
    arithmetic: str = ""
    clock_ms: int = 0
    speed: float = 0.0
    share: float = 1.0
    longest: int = 0
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Node:
    """A node as others see it.   silent_s: since it was heard last, by the server's clock"""

    report: NodeReport
    silent_s: float


class Presence:
    """One router's. Of a node that is alone it is never asked.

    identity  what its answers depend on, in one word (instance.py)
    told      what it says of itself
    refused   why this node takes no requests, in words; "": it does
    share     the part of the fleet's speed that is this node's, 0 to 1
    gone      nodes that were not heard for lease_s
    """

    def __init__(
        self,
        store: StoreClient,
        identity: str,
        told: NodeReport,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.store, self.identity, self.told, self.clock = store, identity, told, clock
        self.refused, self.share = "", 1.0
        self.gone: tuple[str, ...] = ()

    def say(self, speed: float, longest: int = 0) -> None:
        """It lives, does so many requests a second, and holds a sequence of so many tokens."""
        ahead_ms = self.clock_ahead_ms()
        wrong = wrong_clock(ahead_ms)
        of_now = {"clock_ms": ahead_ms, "speed": speed, "share": self.share, "longest": longest}
        refused = wrong or self.refused
        self.told = msgspec.structs.replace(self.told, **of_now, refused=refused)
        keys = self.store.keys
        names = [keys.nodes, keys.speeds, keys.node_report(keys.node), keys.fleet, keys.longest]
        said = msgspec.json.encode(self.told)
        of_node = (keys.node, self.told.instance, said, self.store.lease_s, self.identity)
        heard = self.store.run("heard", names, *of_node, speed, int(bool(wrong)), longest)
        why, other, total, gone = heard
        self.refused = wrong or refusal(why.decode(), other.decode(), keys.node, self.identity)
        self.gone = tuple(name for name in texts(gone) if name != keys.node)
        self.share = min(1.0, max(speed, NO_SPEED) / max(float(total), speed, NO_SPEED))

    def clock_ahead_ms(self) -> int:
        """Of the store's; negative: behind."""
        seconds, micros = self.store.redis.time()
        return round(1000 * self.clock() - 1000 * seconds - micros / 1000)

    def leave(self) -> None:
        """It stops on purpose."""
        keys = self.store.keys
        names = [keys.nodes, keys.speeds, keys.node_report(keys.node), keys.longest]
        self.store.run("leave", names, keys.node, self.told.instance)


def wrong_clock(ahead_ms: int) -> str:
    """Why a clock keeps its node from taking part; "": it does not."""
    if abs(ahead_ms) <= CLOCK_MOST_MS:
        return ""
    side = "ahead of" if ahead_ms > 0 else "behind"
    return f"its clock is {abs(ahead_ms) / 1000:.0f} s {side} the store's; set it by NTP"


def refusal(why: str, other: str, node: str, identity: str) -> str:
    """What heard.lua found, in words."""
    if why == "name":
        return f"another node, on {other or 'a host that is not known'}, is called {node!r}, too"
    if why == "identity":
        return f"{difference(identity, other)}: all nodes of a fleet must have the same"
    return ""


def difference(ours: str, theirs: str) -> str:
    """What differs first, of model:weights:texts:arithmetic."""
    names = ("model", "digest of weights", "tokenizer or template", "arithmetic version")
    pairs = zip(names, ours.split(":"), theirs.split(":"), strict=False)
    name, mine, its = next((p for p in pairs if p[1] != p[2]), ("identity", ours, theirs))
    return f"its {name} is {mine}, the fleet's is {its}"


def nodes(store: StoreClient) -> list[Node]:
    """All nodes of the fleet that were heard in the last weeks, by name; none: a node is alone."""
    found = cast(
        list[tuple[bytes, float]], store.redis.zrange(store.keys.nodes, 0, -1, withscores=True)
    )
    names = sorted(name.decode() for name, _ in found)
    with store.redis.pipeline(transaction=False) as pipeline:
        for name in names:
            pipeline.hgetall(store.keys.node_report(name))
        pipeline.time()
        *hashes, (seconds, micros) = pipeline.execute()
    now_s = seconds + micros / 1e6
    told = zip(names, hashes, strict=True)
    return [node_of_hash(name, raw, now_s) for name, raw in told if raw]


def longest(store: StoreClient) -> int:
    """Tokens of the longest sequence that some node holds; 0: none has said so."""
    found = store.redis.zrange(store.keys.longest, 0, 0, desc=True, withscores=True)
    pairs = cast(list[tuple[bytes, float]], found)
    return max((int(tokens) for _, tokens in pairs), default=0)


def who_holds(store: StoreClient, num_tokens: int, at_most: int = 8) -> list[str]:
    """Nodes that hold a sequence of so many tokens, the smallest of them first."""
    found = store.redis.zrangebyscore(store.keys.longest, num_tokens, "+inf", 0, at_most)
    return texts(cast(list[bytes], found))


def node_report(store: StoreClient, name: str) -> NodeReport | None:
    """What a node says of itself; None: it has not been heard."""
    raw = cast(dict[bytes, bytes], store.redis.hgetall(store.keys.node_report(name)))
    return node_of_hash(name, raw, 0.0).report if raw else None


def node_of_hash(name: str, raw: Mapping[bytes, bytes], now_s: float) -> Node:
    """raw: as heard.lua wrote it"""
    try:
        report = msgspec.json.decode(raw.get(b"said", b"{}"), type=NodeReport)
    except msgspec.DecodeError:  # of a version that we cannot read
        report = NodeReport(node=name, refused="it says what this version cannot read")
    return Node(report, max(0.0, now_s - float(raw.get(b"heard_s", b"0"))))


def forget(store: StoreClient, name: str) -> Any:
    """A node that will not come back leaves the list."""
    keys = store.keys
    with store.redis.pipeline() as pipeline:
        pipeline.zrem(keys.nodes, name)
        pipeline.zrem(keys.speeds, name)
        pipeline.zrem(keys.longest, name)
        pipeline.delete(keys.node_report(name), keys.pools_of(name))
        return pipeline.execute()
