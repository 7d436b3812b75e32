"""One turn of a session in a pool's hands, and the manifests that it leaves behind. Pure.

    head ──compose──► prompt ──engine──► Kept ─► log_of      the token log: committed before the end
                                                 with_kv     blocks and tail are written
                                                 with_state  the recurrent state is written

Only a turn that finished is kept: cancelled, failed and expired ones leave the session as it was.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from kv_tier.chain import BLOCK_TOKENS, common_length
from kv_tier.fork import kv_before
from kv_tier.manifest import Checkpoint, Manifest
from workers.session.compose import Turn, turn_after
from workers.wire import Request, TokenEvent

if TYPE_CHECKING:
    from kv_tier.prefix import Prefix
    from workers.engine.kept import Kept

CHECKPOINTS_MAX: Final = 4  # of one session: where a history that diverges may start again


class NotOurs(Exception):
    """The lease is gone: request and session have another owner now."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose KV and tokens these are: what a manifest says of model and arithmetic."""

    model: str
    weights_digest: str
    arithmetic_version: str
    fingerprint: bytes


@dataclass(frozen=True, slots=True)
class OpenTurn:
    """A session's turn that runs.

    fence  taken for it; whoever takes a higher one is its owner then
    head   what the session was when it began
    turn   None: an earlier owner has committed this turn, and died before it could say so
    on_disk  generation that this node's files have, if it is another than head's
    """

    tenant: str
    session_id: str
    full_id: str
    fence: int
    head: Manifest | None
    turn: Turn | None
    on_disk: int | None = None

    @property
    def own_generation(self) -> int:
        """Of this node's files; 0: there are none."""
        if self.on_disk is not None:
            return self.on_disk
        return self.head.generation if self.head else 0


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a pool needs to go on with an item.

    request  its prompt composed
    journal  the tokens of earlier owners
    prefix   what is in files; None: nothing
    turn     None: it belongs to no session
    """

    request: Request
    journal: Sequence[TokenEvent]
    prefix: "Prefix | None" = None
    turn: OpenTurn | None = None

    @property
    def text(self) -> list[str]:
        """What earlier owners printed."""
        return [event.text for event in self.journal]

    def close(self) -> None:
        """It will not run: give the files back."""
        if self.prefix is not None:
            self.prefix.close()


def log_of(
    turn: OpenTurn,
    identity: Identity,
    kept: "Kept",
    *,
    end_ids: frozenset[int],
    text: str,
    digest: str,
    now_ms: int,
) -> Manifest:
    """The session after a finished turn: its whole log, and of the KV what it had before.

    text: what was shown of the answer
    """
    assert turn.turn is not None
    head = turn.head
    output_ids = kept.token_ids[kept.num_prompt :]
    if output_ids and output_ids[-1] in end_ids:
        output_ids = output_ids[:-1]
    return Manifest(
        tenant=turn.tenant,
        session_id=turn.session_id,
        generation=(head.generation if head else 0) + 1,
        fence=turn.fence,
        fingerprint=identity.fingerprint,
        model=identity.model,
        weights_digest=identity.weights_digest,
        arithmetic_version=identity.arithmetic_version,
        created_ms=head.created_ms if head else now_ms,
        used_ms=now_ms,
        token_ids=tuple(kept.token_ids),
        messages=turn_after(turn.turn, output_ids, text),
        last_request=kept.request.id,
        digest=digest,
        forked_from=head.forked_from if head else "",
        **kv_of(head, kept.token_ids, identity.fingerprint),
    )


def kv_of(head: Manifest | None, token_ids: Sequence[int], fingerprint: bytes) -> dict[str, Any]:
    """Fields of a manifest: what of the head's KV is also the KV of these tokens."""
    if head is None or head.fingerprint != fingerprint:
        return {}
    return kv_before(head, common_length(head.token_ids, token_ids))


def with_kv(manifest: Manifest, kept: "Kept") -> Manifest:
    """The same: all its blocks and its tail are files."""
    assert len(kept.blocks) == kept.num_kv // BLOCK_TOKENS, (len(kept.blocks), kept.num_kv)
    return replace(
        manifest,
        num_kv=kept.num_kv,
        blocks=tuple(key for key, _ in kept.blocks),
        tail=kept.tail[0] if kept.tail else None,
    )


def with_state(manifest: Manifest, kept: "Kept") -> Manifest:
    """The same: the state after its last token is a file, too."""
    if kept.state is None:
        return manifest
    newest = Checkpoint(kept.num_kv, kept.state[0])
    older = [c for c in manifest.checkpoints if c != newest]
    checkpoints = (*older, newest)[-CHECKPOINTS_MAX:]
    return replace(manifest, checkpoints=checkpoints)


def ends_of(token_ids: Sequence[int], head: Manifest | None, *, has_state: bool) -> list[int]:
    """Positions at which a tail or a state of these tokens may lie, ascending.

    Where an interrupted owner stopped, where the session's turns ended; of a state also each end of
    a block.
    """
    newest = len(token_ids) - 1
    ends = {newest}
    if head is not None:
        ends |= {head.num_kv, *(checkpoint.position for checkpoint in head.checkpoints)}
        ends.add(len(head.token_ids) - 1)  # written, but no manifest could say so any more
    if has_state:
        ends |= set(range(BLOCK_TOKENS, newest + 1, BLOCK_TOKENS))
    return sorted(end for end in ends if 0 < end <= newest)
