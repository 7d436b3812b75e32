"""Which addresses a webhook may reach: judged at the door by the URL, at delivery by every address.

    https, port 443        any public address
    any port, http too     addresses in LOCKSTEP_WEBHOOK_ALLOW; http only where the URL spells it
    everything else        refused, with the reason in words

A URL is taken apart once, here; delivery connects to what `resolve` returns and never looks a name
up again, so a name that changes its answer in between (DNS rebinding) gains nothing.
"""

import re
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, Final
from urllib.parse import urlsplit

Address = IPv4Address | IPv6Address
Networks = Sequence[IPv4Network | IPv6Network]
Lookup = Callable[..., Sequence[tuple[Any, ...]]]  # socket.getaddrinfo's shape

URL_CHARS_MAX: Final = 2048
HOST_CHARS_MAX: Final = 253  # RFC 1035
HTTPS_PORT: Final = 443
HTTP_PORT: Final = 80
LOOPBACK: Final[tuple[Address, ...]] = (IPv4Address("127.0.0.1"), IPv6Address("::1"))
LOCAL_NAMES: Final = ("localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback")
PUBLIC_V6: Final = IPv6Network("2000::/3")  # all of IPv6 that is given out as global unicast

# Our own table, because ipaddress.is_global lets 224.0.0.1, 64:ff9b::7f00:1 or 2002:7f00:1:: out
# and differs between Python versions.
NOT_PUBLIC: Final[tuple[IPv4Network | IPv6Network, ...]] = tuple(
    ip_network(text)
    for text in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",  # carrier-grade NAT
        "127.0.0.0/8",
        "168.63.129.16/32",  # Azure's host agent: a public number with a private door
        "169.254.0.0/16",  # link-local, cloud metadata
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",
        "2001::/23",  # protocol assignments, Teredo among them
        "2001:db8::/32",
        "2002::/16",  # 6to4: an IPv4 address in disguise
        "3fff::/20",
    )
)
CHARS: Final = re.compile(r"[!-\[\]-~]+")  # printable ASCII without blank and backslash
NAME: Final = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)(\.(?!-)[a-z0-9_-]{1,63}(?<!-))*")
NETLOC: Final = re.compile(r"(\[[0-9A-Fa-f:.%a-z]+\]|[^\[\]:@%]+)(:[0-9]{1,5})?")
# the last label is a number: IPv4, however spelled
NUMERIC: Final = re.compile(r"(.*\.)?([0-9]+|0x[0-9a-f]*)")


class Forbidden(Exception):
    """This webhook target may not be reached; the message says why."""


@dataclass(frozen=True)
class Target:
    """A URL taken apart.

    host  lower case, no final dot, no brackets; an address in its usual spelling
    """

    scheme: str
    host: str
    port: int
    path: str  # with the query

    @property
    def address(self) -> Address | None:
        """The address, when the URL spells one."""
        try:
            return ip_address(self.host)
        except ValueError:
            return None

    @property
    def endpoint(self) -> str:
        """Whom we talk to: host:port."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_networks(text: str) -> tuple[IPv4Network | IPv6Network, ...]:
    """The networks of a comma-separated list of CIDRs and addresses.

    Raises ValueError with one sentence that names the wrong one.
    """
    networks = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        try:
            networks.append(ip_network(part))
        except ValueError as error:
            raise ValueError(
                f"webhook_allow: {part!r} is not a network like 127.0.0.0/8: {error}"
            ) from None
    return tuple(networks)


def check_url(url: str, allow: Networks) -> str | None:
    """Why a webhook may not go to this URL, as far as the URL itself tells; None when it may."""
    try:
        target = parse_url(url)
        address = target.address
        if address is not None:
            judge(address, target, allow)
        else:
            _judge_name(target, allow)
    except Forbidden as forbidden:
        return str(forbidden)
    return None


def parse_url(url: str) -> Target:
    """Raises Forbidden for what is no plain http(s) URL: userinfo, blanks, strange hosts."""
    if len(url) > URL_CHARS_MAX:
        raise Forbidden(f"the URL is longer than {URL_CHARS_MAX} characters")
    if not CHARS.fullmatch(url):
        raise Forbidden("the URL has characters outside printable ASCII, a blank or a backslash")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise Forbidden("the URL has no valid host and port") from None
    if parts.scheme not in ("https", "http"):
        raise Forbidden("the URL must begin with https://")
    if "@" in parts.netloc:
        raise Forbidden("the URL must not carry a user name or password")
    if not host or port == 0 or not NETLOC.fullmatch(parts.netloc):
        raise Forbidden("the URL has no valid host and port")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Target(parts.scheme, _plain_host(host), port or default_port(parts.scheme), path)


def default_port(scheme: str) -> int:
    """The port of an https or http URL that names none."""
    return HTTPS_PORT if scheme == "https" else HTTP_PORT


def _plain_host(host: str) -> str:
    if ":" in host:
        if "%" in host:
            raise Forbidden("the host is an address of one interface (a zone id)")
        try:
            return str(IPv6Address(host))
        except ValueError:
            raise Forbidden(f"the host {host} is no IPv6 address") from None
    host = host.removesuffix(".")
    if NUMERIC.fullmatch(host):
        try:  # 127.1, 0x7f.1, 2130706433, 017700000001
            return str(IPv4Address(socket.inet_aton(host)))
        except OSError:
            raise Forbidden(f"the host {host} is no IPv4 address") from None
    if len(host) > HOST_CHARS_MAX or not NAME.fullmatch(host):
        raise Forbidden("the host is no valid name (write international names in their xn-- form)")
    return host


def _judge_name(target: Target, allow: Networks) -> None:
    if is_local_name(target.host):
        if not local_addresses(allow):
            raise Forbidden(f"the host {target.host} is this machine")
        return
    _judge_way(target, any_port=bool(allow))


def _judge_way(target: Target, *, any_port: bool) -> None:
    """Scheme and port of a target that is in no allowed network, or is not known to be."""
    if target.scheme != "https":
        raise Forbidden(
            "http is only for addresses in webhook_allow, spelled in the URL; use https"
        )
    if target.port != HTTPS_PORT and not any_port:
        raise Forbidden(f"the port must be {HTTPS_PORT}, not {target.port}")


def is_local_name(host: str) -> bool:
    return host in LOCAL_NAMES or host.endswith(".localhost")


def local_addresses(allow: Networks) -> list[Address]:
    """Loopback addresses that are allowed."""
    return [a for a in LOOPBACK if _inside(a, allow)]


def judge(address: Address, target: Target, allow: Networks) -> None:
    """Raises Forbidden unless this target may be reached at this address."""
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    address = mapped or address
    if _inside(address, allow):
        return
    if not is_public(address):
        raise Forbidden(f"the address {address} is not public and not in LOCKSTEP_WEBHOOK_ALLOW")
    _judge_way(target, any_port=False)


def is_public(address: Address) -> bool:
    """Whether the address is one of the open internet, and no other address in disguise."""
    if isinstance(address, IPv6Address) and address not in PUBLIC_V6:
        return False  # ::/96, NAT64, link-local, site-local, unique local, multicast, ...
    return not _inside(address, NOT_PUBLIC)


def _inside(address: Address, networks: Networks) -> bool:
    return any(address in n for n in networks if n.version == address.version)


def resolve(target: Target, allow: Networks, lookup: Lookup = socket.getaddrinfo) -> list[str]:
    """The addresses to connect to, every one of them judged; a name is looked up exactly once.

    Raises Forbidden when any address (not only the first) is, OSError when the name has none.
    """
    literal = target.address
    if literal is not None:
        addresses: list[Address] = [literal]
    elif is_local_name(target.host):
        addresses = local_addresses(allow)
        if not addresses:
            raise Forbidden(f"the host {target.host} is this machine")
    else:
        if target.scheme != "https":
            _judge_name(target, allow)
        found = lookup(target.host, target.port, type=socket.SOCK_STREAM)
        texts = dict.fromkeys(str(entry[4][0]).split("%")[0] for entry in found)
        addresses = [ip_address(text) for text in texts]
    if not addresses:
        raise OSError(f"{target.host} has no address")
    for address in addresses:
        judge(address, target, allow)
    return [str(a) for a in addresses]
