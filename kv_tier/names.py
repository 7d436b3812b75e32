"""What the ledger calls an object, and which objects a manifest names."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from kv_tier.chain import BLOCK_TOKENS
from kv_tier.format import KEY_BYTES, KINDS, PAGE_BYTES, Kind
from kv_tier.manifest import Manifest

NO_KEY: Final = bytes(KEY_BYTES)  # a parent's: there is none, or nobody told
FIXED_BYTES: Final = 1024  # of a manifest: all that is neither tokens, nor text, nor keys
MESSAGE_BYTES: Final = 64
GENERATIONS: Final = 2  # a session's manifest, and the one before it


@dataclass(frozen=True, slots=True)
class Link:
    """One object in a chain.

    name    of the object
    parent  name of the block before it; empty: there is none
    depth   tokens before its end
    """

    name: bytes
    parent: bytes
    depth: int

    @property
    def is_leaf(self) -> bool:
        """Nothing follows a tail or a state."""
        return is_leaf(self.name)

    @property
    def num_tokens(self) -> int:
        """As its file says: 256 of a block, the rest of a tail, the position of a state."""
        kind, _ = kind_and_key(self.name)
        if kind == "state":
            return self.depth
        return BLOCK_TOKENS if kind == "block" else self.depth % BLOCK_TOKENS


def name_of(kind: Kind, key: bytes) -> bytes:
    """The kind's number, then the key."""
    assert len(key) == KEY_BYTES, key
    return bytes((KINDS.index(kind) + 1,)) + key


def kind_and_key(name: bytes) -> tuple[Kind, bytes]:
    """The inverse of name_of."""
    return KINDS[name[0] - 1], name[1:]


def is_leaf(name: bytes) -> bool:
    return kind_and_key(name)[0] != "block"


def parent_name(key: bytes) -> bytes:
    """Of a file that says so: the block of this key; empty for NO_KEY."""
    return b"" if key == NO_KEY else name_of("block", key)


def parent_key(link: Link) -> bytes:
    """The key of the block before it, or NO_KEY: as a file says it."""
    return kind_and_key(link.parent)[1] if link.parent else NO_KEY


def links_of(manifest: Manifest) -> list[Link]:
    """Every object that a manifest names, parents before children."""
    blocks = [name_of("block", key) for key in manifest.blocks]
    parents = [b"", *blocks]
    links = [Link(name, parents[i], (i + 1) * BLOCK_TOKENS) for i, name in enumerate(blocks)]
    if manifest.tail is not None:
        links.append(Link(name_of("tail", manifest.tail), parents[-1], manifest.num_kv))
    for point in manifest.checkpoints:
        parent = parents[min(point.position // BLOCK_TOKENS, len(blocks))]
        links.append(Link(name_of("state", point.key), parent, point.position))
    return list({link.name: link for link in links}.values())


def lifted(links: Iterable[Link], values: Mapping[bytes, float]) -> dict[bytes, float]:
    """Values by name, a parent's at least that of its best child. Parents come before children."""
    best: dict[bytes, float] = {}
    for link in reversed(list(links)):
        if link.name in values:
            value = max(values[link.name], best.get(link.name, 0.0))
            best[link.name] = value
            best[link.parent] = max(value, best.get(link.parent, 0.0))
    return {name: value for name, value in best.items() if name in values}


def manifest_bytes(manifest: Manifest) -> int:
    """What a session's manifests are counted as: about what they take, in whole pages."""
    text = sum(len(one.content.encode()) + MESSAGE_BYTES for one in manifest.messages)
    keys = KEY_BYTES * (len(manifest.blocks) + 2 * len(manifest.checkpoints))
    total = FIXED_BYTES + 4 * len(manifest.token_ids) + text + keys
    return GENERATIONS * -(-total // PAGE_BYTES) * PAGE_BYTES
