"""Which turn of a session is refused, because to go on without what is lost would be a new one.

A client that sends the whole history along is not asked here, but for the weights.
"""

from collections.abc import Mapping
from typing import Any

from kv_tier.manifest import Manifest
from kv_tier.sessions import Sessions
from workers.session.compose import ComposeError
from workers.session.recall import Recalled, is_current
from workers.session.turn import Identity


def refuse_other_weights(head: Manifest | None, mine: Identity) -> None:
    """Raises ComposeError."""
    if head is not None and head.weights_digest != mine.weights_digest:
        reason = (
            f"session {head.session_id} belongs to other weights: {head.model} "
            f"({head.weights_digest[:12]}), this pool runs {mine.model} "
            f"({mine.weights_digest[:12]})"
        )
        raise ComposeError("session_id", reason, "session_mismatch")


def refuse_gap(unsaved: str | None) -> None:
    """The last turn was answered but not saved, for this reason. Raises ComposeError."""
    if unsaved:
        what = f"its last turn was not saved ({unsaved}): send the whole history"
        raise ComposeError("session_id", what, "session_not_saved")


def refuse_loss(
    sessions: Sessions, tenant: str, session_id: str, found: Recalled, noted: Mapping[str, Any]
) -> None:
    """Turns are lost with a manifest that is damaged or gone. Raises ComposeError.

    noted: what pools told of the last turn. What follows it says the same, and names more KV:
    with that nothing is lost, and nothing is read again to know it. Whatever deletes a session
    also takes this back (Store.session_forget).
    """
    head, told = found.manifest, noted.get("generation")
    if told is not None and is_current(head, noted):
        return
    damaged, have = sessions.damaged(tenant, session_id), head.generation if head else 0
    if damaged and have < (damaged if told is None else told):
        what = f"generation {damaged} of its log is damaged: send the whole history"
        raise ComposeError("session_id", what, "session_unreadable")
    if told:
        what = (
            f"the files of {session_id!r} are gone (generation {told} was committed): start "
            "another session, delete this one, or send the whole history"
        )
        what += f"; {found.trouble}" if found.trouble else ""
        raise ComposeError("session_id", what, "session_gone")
