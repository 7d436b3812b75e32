"""What a session is: its token log, its messages, and the names of the KV that belongs to it."""

from dataclasses import dataclass
from pathlib import Path


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


def encode_manifest(manifest: Manifest) -> bytes:
    """The bytes of its file (FORMAT.md)."""
    raise NotImplementedError


def decode_manifest(data: bytes, path: Path) -> Manifest:
    """The inverse. path is for the message. Raises CorruptFile, NewerVersion."""
    raise NotImplementedError
