"""What LOCKSTEP_REDIS_URL says: a server, a Cluster, or Sentinels; and as whom, and by TLS or not.

    redis://[USER:PASSWORD@]HOST[:6379][/DB]                       one server
    unix://[USER:PASSWORD@]/PATH[?db=DB]                           one server of this machine
    redis+cluster://[USER:PASSWORD@]HOST[:6379][,HOST[:PORT]...]   some nodes of a Cluster
    redis+sentinel://[USER:PASSWORD@]HOST[:26379][,HOST[:PORT]...]/NAME[/DB]
                                                                   Sentinels of the master NAME

By TLS: rediss://, rediss+cluster://, rediss+sentinel:// (then the Sentinels, too). A Sentinel's own
user and password are the options sentinel_username and sentinel_password; all others (?NAME=VALUE)
are redis-py's.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import SplitResult, parse_qs, unquote, urlencode, urlsplit

Place = tuple[str, int]  # host, port
PORTS: Final = {"one": 6379, "cluster": 6379, "sentinel": 26379}
OF_SENTINEL: Final = {"sentinel_username": "username", "sentinel_password": "password"}
TAG: Final = re.compile(r"[^{]*\{[^}]+\}.*")


class BadUrl(ValueError):
    """What is wrong with it; without its passwords."""


@dataclass(frozen=True)
class StoreUrl:
    """A parsed URL.

    kind      "one": a server; "unix": the same, by a socket of this machine; "cluster"; "sentinel"
    is_tls    all connections are
    places    whom to ask: the server, nodes, or Sentinels; none of "unix"
    service   the master's name among the Sentinels
    options   of a connection to the store, as redis-py names them; may hold a password
    sentinel  the same of one to a Sentinel
    """

    kind: str
    is_tls: bool
    places: tuple[Place, ...]
    service: str = ""
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    sentinel: Mapping[str, Any] = field(default_factory=dict, repr=False)


def parse(url: str) -> StoreUrl:
    """Raises BadUrl."""
    parts = split(url)
    scheme, _, kind = parts.scheme.partition("+")
    if parts.scheme == "unix":
        return StoreUrl("unix", False, (), options=options_of(url))
    kind = kind or "one"
    if scheme not in ("redis", "rediss") or kind not in PORTS or parts.scheme.endswith("+one"):
        raise BadUrl("no such kind of store")
    user, at, hosts = parts.netloc.rpartition("@")
    places = tuple(place(host, PORTS[kind]) for host in hosts.split(","))
    if kind == "one" and len(places) > 1:
        raise BadUrl("several hosts: say redis+cluster:// or redis+sentinel://")
    service, database = service_and_database(kind, parts.path.strip("/"))
    query = parse_qs(parts.query)
    own = {OF_SENTINEL[name]: query.pop(name)[0] for name in OF_SENTINEL if name in query}
    told = f"{scheme}://{user}{at}host/{database}?{urlencode(query, doseq=True)}"
    options = options_of(told)
    del options["host"]
    tls = {name: value for name, value in options.items() if name.startswith("ssl_")}
    return StoreUrl(kind, scheme == "rediss", places, service, options, tls | own)


def split(url: str) -> SplitResult:
    """Raises BadUrl."""
    try:
        return urlsplit(url)
    except ValueError:  # which may tell the password
        raise BadUrl("a host that is none") from None


def service_and_database(kind: str, path: str) -> tuple[str, str]:
    """What stands behind the hosts. Raises BadUrl."""
    if kind == "sentinel":
        service, _, database = path.partition("/")
        if not service:
            raise BadUrl("the master's name is missing: redis+sentinel://HOST:26379/NAME")
        return unquote(service), database
    if kind == "cluster" and path not in ("", "0"):
        raise BadUrl("a Cluster has database 0 alone")
    return "", path


def place(told: str, port: int) -> Place:
    """HOST or HOST:PORT; an IPv6 address in brackets. Raises BadUrl."""
    parts = split(f"//{told}")
    try:
        given = parts.port
    except ValueError:
        given = 0
    if given == 0:
        raise BadUrl("a host's port is no number from 1 to 65535")
    return unquote(parts.hostname or "localhost"), given or port


def options_of(url: str) -> dict[str, Any]:
    """As redis-py reads them. Raises BadUrl."""
    from redis.connection import parse_url  # here: not every command that reads settings needs it

    try:
        told: dict[str, Any] = parse_url(url)  # type: ignore[no-untyped-call]
    except ValueError as error:
        raise BadUrl(str(error)) from None
    return {name: value for name, value in told.items() if name != "connection_class"}


def passwords(url: str) -> list[str]:
    """What of a URL may stand in no log."""
    parts = urlsplit(url)
    told = parse_qs(parts.query)
    found = [parts.password, *told.get("password", ()), *told.get("sentinel_password", ())]
    return [word for word in found if word]


def check_prefix(url: StoreUrl, prefix: str) -> None:
    """Raises BadUrl if the keys would not lie in one slot."""
    if url.kind == "cluster" and not TAG.fullmatch(prefix):
        raise BadUrl(
            "with redis+cluster:// the prefix of keys must hold a tag in braces, such as "
            "{lockstep}: it puts all keys into one slot"
        )
