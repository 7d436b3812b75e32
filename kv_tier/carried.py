"""A session carried elsewhere: written to one file, read back on this node or on another.

    export     manifest and objects as they lie on the disk ──► FILE (bundle.py: its bytes)
    importing  FILE ──► all of it checked ──► objects under this node's names ──► a session

KV fits one set of weights and one arithmetic: misfit says why a session of another is of no use.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from kv_tier.bundle import BLOCK, STATE, TAIL
from kv_tier.format import Kind
from kv_tier.manifest import Manifest
from kv_tier.prefix import Sizes

KIND_OF: Final[dict[int, Kind]] = {BLOCK: "block", TAIL: "tail", STATE: "state"}
TYPE_OF: Final[dict[Kind, int]] = {kind: type_ for type_, kind in KIND_OF.items()}

Progress = Callable[[int, int], None]  # bytes done, bytes in all


@dataclass(frozen=True, slots=True)
class Node:
    """What KV must have been made with to be of use here."""

    model: str
    weights_digest: str
    arithmetic_version: str
    sizes: Sizes


@dataclass(frozen=True, slots=True)
class Carried:
    """What went over.

    objects  written; an object that was there already counts, too
    left     objects that the manifest names and nobody has whole: they will be computed again
    """

    manifest: Manifest
    objects: int
    left: int
    file_bytes: int


def misfit(manifest: Manifest, node: Node) -> str | None:
    """Why a session's KV is of no use on this node, in words; None: it is."""
    if manifest.weights_digest != node.weights_digest:
        made = f"{manifest.model!r} (weights {manifest.weights_digest})"
        return f"made with {made}, this node serves {node.model!r} (weights {node.weights_digest})"
    if manifest.arithmetic_version != node.arithmetic_version:
        versions = (
            f"{manifest.arithmetic_version}, this node computes with {node.arithmetic_version}"
        )
        return f"made with version {versions} of the arithmetic"
    if manifest.fingerprint != node.sizes.fingerprint:
        return "made with another layout of KV or state"
    return None
