"""The headers that let a receiver trust a webhook: Standard Webhooks 1.0, HMAC-SHA256.

Secrets are read when an attempt is made, never queued. One file (or setting) may hold several with
blanks between: each signs, so that a receiver can change from one to the next without a gap.
"""

import base64
import binascii
import os
import secrets as randomness
import tempfile
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

from workers.wire import DEFAULT_SECRET, DEFAULT_TENANT, SECRET_ID, full_id

PREFIX: Final = "whsec_"


class NoSecret(Exception):
    """There is no usable secret of this name; the message says where one was looked for."""


def headers(message_id: str, body: bytes, secrets: Sequence[str], now: datetime) -> dict[str, str]:
    """webhook-id, webhook-timestamp, webhook-signature of one attempt. now: aware, in UTC."""
    from standardwebhooks.webhooks import Webhook

    assert "." not in message_id, message_id
    offset = now.utcoffset()
    assert offset is not None and not offset, f"the library takes {now} for UTC"
    text = body.decode()
    signatures = [Webhook(secret).sign(message_id, now, text) for secret in secrets]
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": " ".join(signatures),
    }


def default_file(home: Path) -> Path:
    """Where the node's own secret lies, unless the configuration holds it."""
    return home / "webhook_secret"


def read_secrets(
    secret_id: str, home: Path, configured: str | None, tenant: str = DEFAULT_TENANT
) -> tuple[str, ...]:
    """The secrets that sign for `secret_id` of a tenant. Raises NoSecret.

    A name is its tenant's own: nobody has a webhook signed with another tenant's secret. The node's
    own secret signs for whoever names none; what it signs says of which tenant it is.
    """
    if not SECRET_ID.fullmatch(secret_id) or "--" in secret_id:
        raise NoSecret(f"{secret_id!r} is no name of a secret")
    if secret_id == DEFAULT_SECRET and configured is not None:
        return _checked(configured, "LOCKSTEP_WEBHOOK_SECRET")
    named = home / "webhook_secrets" / full_id(tenant, secret_id)
    path = default_file(home) if secret_id == DEFAULT_SECRET else named
    try:
        return _checked(path.read_text(), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise NoSecret(f"the secret {secret_id} cannot be read: {error}") from None


def _checked(text: str, place: str) -> tuple[str, ...]:
    found = tuple(text.split())
    for secret in found:
        try:
            key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
        except binascii.Error:
            key = b""
        if not secret.startswith(PREFIX) or not 24 <= len(key) <= 64:
            raise NoSecret(f"{place} must hold {PREFIX} and 24 to 64 bytes in base64")
    if not found:
        raise NoSecret(f"{place} is empty")
    return found


def make_secret(home: Path) -> Path:
    """Makes the node's secret at its first start, for its owner's eyes only; an old one is kept."""
    path = default_file(home)
    if path.exists():
        return path
    home.mkdir(parents=True, exist_ok=True)
    secret = PREFIX + base64.b64encode(randomness.token_bytes(32)).decode()
    descriptor, draft = tempfile.mkstemp(dir=home, prefix=".webhook_secret-")  # mode 0600
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(secret + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.link(draft, path)  # fails if another process was first: then its secret is ours too
    except FileExistsError:
        pass
    finally:
        os.unlink(draft)
    return path
