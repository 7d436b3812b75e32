"""An object on its way: the bytes of its file, with the names that hold where it arrives.

Header and payload have their checksums with them (FORMAT.md, section 2). All of them are looked at
before it is sent, and again before anything of what arrived is used.
"""

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import xxhash

from kv_tier.format import (
    PIECE_BYTES,
    CorruptFile,
    Kind,
    ObjectHeader,
    announced_header_bytes,
    decode_header,
    encode_header,
    file_bytes,
    header_bytes,
    padded_bytes,
)
from kv_tier.names import Link, kind_and_key, parent_key
from kv_tier.objects import Source
from kv_tier.open_object import OpenObject
from kv_tier.remote.places import object_place

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


def packed(opened: OpenObject, shared: Link) -> "list[ReadableBuffer]":
    """Header, payload and padding of a verified object, under its name in the fleet.

    The payload is the mapped file itself: it outlives close().
    """
    data = os.pread(opened.fd, opened.payload_offset, 0)
    header, sums = decode_header(data, opened.path)
    _, key = kind_and_key(shared.name)
    renamed = replace(header, key=key, parent=parent_key(shared))
    padding = bytes(padded_bytes(header.payload_bytes) - header.payload_bytes)
    return [encode_header(renamed, sums), opened.view().data, padding]


def unpacked(
    data: memoryview,
    tenant: str,
    fingerprint: bytes,
    payload_bytes: int,
    *,
    shared: Link,
    own: Link,
) -> Source:
    """What arrived, to be written under its name here. Raises CorruptFile: nothing of it is used.

    payload_bytes  what the running model needs of such an object
    """
    path = Path(object_place(tenant, shared.name))
    kind, key = kind_and_key(shared.name)
    num_bytes = announced_header_bytes(bytes(data[:4096]), path)
    header, sums = decode_header(bytes(data[:num_bytes]), path)
    _check(header, path, (kind, key, tenant, fingerprint, shared.num_tokens, payload_bytes))
    if len(data) != file_bytes(payload_bytes):
        raise CorruptFile(path, f"{len(data)} bytes, not {file_bytes(payload_bytes)}")
    begin = header_bytes(payload_bytes)
    for index, expected in enumerate(sums):
        piece = data[begin + index * PIECE_BYTES : begin + (index + 1) * PIECE_BYTES]
        if xxhash.xxh3_128_digest(piece) != expected:
            raise CorruptFile(path, f"piece {index} is not what was sent")
    payload = data[begin : begin + payload_bytes]
    return Source(
        key=kind_and_key(own.name)[1],
        kind=kind,
        num_tokens=shared.num_tokens,
        parts=(payload,),
        fingerprint=fingerprint,
        tenant=tenant,
        parent=parent_key(own),
    )


def _check(
    header: ObjectHeader, path: Path, wanted: tuple[Kind, bytes, str, bytes, int, int]
) -> None:
    """Raises CorruptFile for what is sound, but another object than this."""
    said = (
        *(header.kind, header.key, header.tenant, header.fingerprint),
        *(header.num_tokens, header.payload_bytes),
    )
    if said != wanted:
        raise CorruptFile(path, f"it is {header.kind} {header.key.hex()}, under another's name")
