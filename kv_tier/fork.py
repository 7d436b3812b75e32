"""A session that begins as another did: a new manifest with the same names, and no copy of KV."""

from dataclasses import replace
from typing import Any

from kv_tier.chain import BLOCK_TOKENS
from kv_tier.manifest import Manifest, Message


class NoSession(Exception):
    """There is no session of that name."""

    def __init__(self, tenant: str, session_id: str) -> None:
        super().__init__(f"there is no session {session_id!r} of {tenant!r}")
        self.tenant, self.session_id = tenant, session_id


class SessionExists(Exception):
    """There is a session of that name already."""

    def __init__(self, tenant: str, session_id: str) -> None:
        super().__init__(f"there is a session {session_id!r} of {tenant!r} already")
        self.tenant, self.session_id = tenant, session_id


def forked(
    manifest: Manifest, target: str, position: int | None, *, fence: int, now_ms: int
) -> Manifest:
    """The first generation of `target`, which begins as `manifest` did, up to `position`.

    position  in [0, tokens of the log]; None: all of it
    fence     as it was taken for target
    """
    num_tokens = len(manifest.token_ids)
    end = num_tokens if position is None else position
    assert 0 <= end <= num_tokens, (position, num_tokens)
    whole = replace(
        manifest,
        session_id=target,
        generation=1,
        fence=fence,
        created_ms=now_ms,
        used_ms=now_ms,
        last_request="",
        forked_from=manifest.session_id,
    )
    return whole if end == num_tokens else _cut(whole, end)


def kv_before(manifest: Manifest, end: int) -> dict[str, Any]:
    """Fields of a manifest: what of its KV and states lies whole before `end`."""
    num_blocks = min(manifest.num_kv, end) // BLOCK_TOKENS
    is_all = manifest.num_kv <= end
    return {
        "num_kv": manifest.num_kv if is_all else num_blocks * BLOCK_TOKENS,
        "blocks": manifest.blocks[:num_blocks],
        "tail": manifest.tail if is_all else None,
        "checkpoints": tuple(point for point in manifest.checkpoints if point.position <= end),
    }


def _cut(manifest: Manifest, end: int) -> Manifest:
    """The beginning of a session, before `end`."""
    return replace(
        manifest,
        token_ids=manifest.token_ids[:end],
        messages=_messages_before(manifest.messages, end),
        digest="",
        **kv_before(manifest, end),
    )


def _messages_before(messages: tuple[Message, ...], end: int) -> tuple[Message, ...]:
    """Up to the last answer that lies whole before `end`: only answers know where they lie."""
    answered = [i for i, message in enumerate(messages) if 0 < message.end <= end]
    return messages[: answered[-1] + 1] if answered else ()
