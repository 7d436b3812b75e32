"""What a session is: its token log, its messages, and the names of the KV that belongs to it.

The log stands by itself: a manifest is readable, and the session goes on, whatever model wrote it
and whether or not a single object that it names is still there.
"""

from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgpack

from kv_tier.format import (
    BLOCK_TOKENS,
    BLOCKS,
    CHECKPOINT,
    CHECKPOINTS,
    KEY_BYTES,
    MESSAGES,
    TAIL,
    TOKENS,
    WORDS,
    CorruptFile,
    ManifestHead,
    decode_records,
    encode_records,
    is_session_id,
    is_tenant,
    token_bytes,
)

LARGEST: Final = (1 << 63) - 1  # of generation, fence and times
TEXTS: Final = (
    "model",
    "weights_digest",
    "arithmetic_version",
    "last_request",
    "digest",
    "forked_from",
)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Recurrent state after `position` tokens is the object `key` of kind state."""

    position: int
    key: bytes


@dataclass(frozen=True, slots=True)
class Message:
    """One message of the conversation.

    begin, end  of an assistant's message: its generated ids are token_ids[begin:end], without the
                end token; 0, 0: its ids came from rendering the text
    """

    role: str
    content: str
    begin: int = 0
    end: int = 0


@dataclass(frozen=True, slots=True)
class Manifest:
    """One generation of a session. The token log is the truth; KV is found by name, or not.

    generation   1 for the first commit; one more with each
    fence        of its writer (sessions.Sessions.take)
    fingerprint  that blocks, tail and checkpoints were made with
    num_kv       tokens whose KV is kept; 0: nothing but the log
    blocks       keys of the full blocks of [0, num_kv): num_kv // 256 of them
    tail         key of the rest; None when num_kv is a multiple of 256
    last_request id of the request that ended the last turn
    digest       of the last answer, 16 hex digits
    forked_from  session id, or ""
    """

    tenant: str
    session_id: str
    generation: int
    fence: int
    fingerprint: bytes
    model: str
    weights_digest: str
    arithmetic_version: str
    created_ms: int
    used_ms: int
    token_ids: tuple[int, ...]
    messages: tuple[Message, ...] = ()
    num_kv: int = 0
    blocks: tuple[bytes, ...] = ()
    tail: bytes | None = None
    checkpoints: tuple[Checkpoint, ...] = ()
    last_request: str = ""
    digest: str = ""
    forked_from: str = ""

    def fault(self) -> str:
        """What is wrong with it, in words; "" when it may be committed."""
        num_tokens = len(self.token_ids)
        keys = [*self.blocks, *(c.key for c in self.checkpoints), self.fingerprint]
        keys += [self.tail] if self.tail is not None else []
        if not is_tenant(self.tenant) or not is_session_id(self.session_id):
            return f"session {self.tenant!r}, {self.session_id!r}"
        if not 1 <= self.generation <= LARGEST or not 1 <= self.fence <= LARGEST:
            return f"generation {self.generation}, fence {self.fence}"
        if not 0 <= self.created_ms <= LARGEST or not 0 <= self.used_ms <= LARGEST:
            return f"created {self.created_ms}, used {self.used_ms}"
        if not 0 <= self.num_kv <= num_tokens or len(self.blocks) != self.num_kv // BLOCK_TOKENS:
            return f"{len(self.blocks)} blocks, KV of {self.num_kv} of {num_tokens} tokens"
        if (self.tail is None) != (self.num_kv % BLOCK_TOKENS == 0):
            return f"KV of {self.num_kv} tokens, but the tail is {self.tail!r}"
        if any(len(key) != KEY_BYTES for key in keys):
            return "a key or the fingerprint is not 32 bytes"
        if not all(1 <= c.position <= num_tokens for c in self.checkpoints):
            return f"a checkpoint outside of {num_tokens} tokens"
        if not all(0 <= m.begin <= m.end <= num_tokens for m in self.messages):
            return f"a message outside of {num_tokens} tokens"
        return ""


def encode_manifest(manifest: Manifest) -> bytes:
    """The bytes of its file (FORMAT.md)."""
    assert not manifest.fault(), manifest.fault()
    head = ManifestHead(
        manifest.generation,
        manifest.fence,
        manifest.created_ms,
        manifest.used_ms,
        len(manifest.token_ids),
        manifest.num_kv,
        manifest.fingerprint,
        manifest.tenant,
        manifest.session_id,
    )
    messages = [[m.role, m.content, m.begin, m.end] for m in manifest.messages]
    checkpoints = [CHECKPOINT.pack(c.position, c.key) for c in manifest.checkpoints]
    records = [
        (TOKENS, token_bytes(manifest.token_ids)),
        (BLOCKS, b"".join(manifest.blocks)),
        (TAIL, manifest.tail or b""),
        (CHECKPOINTS, b"".join(checkpoints)),
        (MESSAGES, _pack(messages)),
        (WORDS, _pack({name: getattr(manifest, name) for name in TEXTS})),
    ]
    return encode_records(head, [record for record in records if record[1]])


def decode_manifest(data: bytes, path: Path) -> Manifest:
    """The inverse. path is for the message. Raises CorruptFile, NewerVersion."""
    head, records = decode_records(data, path)
    try:
        manifest = _manifest(head, records)
    except (ValueError, TypeError) as error:  # of a record that is no int32s, no keys, no msgpack
        raise CorruptFile(path, f"a record makes no sense: {error}") from error
    if len(manifest.token_ids) != head.num_tokens or manifest.fault():
        raise CorruptFile(path, manifest.fault() or f"not the {head.num_tokens} tokens it says")
    return manifest


def _manifest(head: ManifestHead, records: dict[int, bytes]) -> Manifest:
    """Raises ValueError or TypeError for records that are no such thing."""
    token_ids = array("i", records.get(TOKENS, b""))
    blocks = records.get(BLOCKS, b"")
    return Manifest(
        tenant=head.tenant,
        session_id=head.session_id,
        generation=head.generation,
        fence=head.fence,
        fingerprint=head.fingerprint,
        created_ms=head.created_ms,
        used_ms=head.used_ms,
        token_ids=tuple(token_ids),
        messages=_messages(records),
        num_kv=head.num_kv,
        blocks=tuple(blocks[i : i + KEY_BYTES] for i in range(0, len(blocks), KEY_BYTES)),
        tail=records.get(TAIL),
        checkpoints=_checkpoints(records),
        **_words(records),
    )


def _checkpoints(records: dict[int, bytes]) -> tuple[Checkpoint, ...]:
    payload = records.get(CHECKPOINTS, b"")
    if len(payload) % CHECKPOINT.size:
        raise ValueError(f"checkpoints in {len(payload)} bytes")
    return tuple(Checkpoint(*fields) for fields in CHECKPOINT.iter_unpack(payload))


def _messages(records: dict[int, bytes]) -> tuple[Message, ...]:
    messages = []
    for role, content, begin, end in _unpack(records.get(MESSAGES), []):
        if not (type(role) is type(content) is str and type(begin) is type(end) is int):
            raise TypeError("a message is role, content, begin, end")
        messages.append(Message(role, content, begin, end))
    return tuple(messages)


def _words(records: dict[int, bytes]) -> dict[str, str]:
    words = _unpack(records.get(WORDS), {})
    if not all(type(words.get(name)) is str for name in TEXTS):
        raise TypeError(f"not the words {', '.join(TEXTS)}")
    return {name: words[name] for name in TEXTS}


def _pack(value: Any) -> bytes:
    """Text may hold half a surrogate pair: JSON can say it, so a client can send it."""
    return bytes(msgpack.packb(value, unicode_errors="surrogatepass"))


def _unpack(payload: bytes | None, otherwise: Any) -> Any:
    """A value of the same type as `otherwise`. Raises ValueError, TypeError."""
    if payload is None:
        return otherwise
    value = msgpack.unpackb(payload, unicode_errors="surrogatepass", strict_map_key=False)
    if type(value) is not type(otherwise):
        raise TypeError(f"{type(value).__name__} where {type(otherwise).__name__} belongs")
    return value
