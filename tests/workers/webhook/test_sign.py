"""Signatures are those of the standardwebhooks library, and secrets are kept to their owner."""

import base64
import os
import stat
import threading
from datetime import UTC, datetime, timedelta, timezone

import pytest
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from workers.webhook.sign import NoSecret, default_file, headers, make_secret, read_secrets

OLD = "whsec_" + base64.b64encode(b"o" * 32).decode()
NEW = "whsec_" + base64.b64encode(b"n" * 32).decode()
BODY = '{"text":"Grüße"}'.encode()


def now():
    return datetime.now(UTC)


def test_a_receiver_verifies_the_signature():
    signed = headers("msg_r_finished", BODY, [NEW], now())
    assert Webhook(NEW).verify(BODY, signed) == {"text": "Grüße"}
    assert signed["webhook-id"] == "msg_r_finished"


@pytest.mark.parametrize("change", ["webhook-id", "webhook-timestamp", "body", "secret"])
def test_any_change_is_noticed(change):
    signed = headers("msg_r_finished", BODY, [NEW], now())
    if change in signed:
        signed[change] = {"webhook-id": "msg_s"}.get(change, str(int(now().timestamp()) + 9))
    body = BODY + b" " if change == "body" else BODY
    with pytest.raises(WebhookVerificationError):
        Webhook(OLD if change == "secret" else NEW).verify(body, signed)


def test_two_secrets_sign_both_while_a_receiver_changes():
    signed = headers("msg_r_finished", BODY, [NEW, OLD], now())
    assert Webhook(NEW).verify(BODY, signed) == Webhook(OLD).verify(BODY, signed)


def test_only_utc_is_signed():
    """The library takes any time for UTC: two hours east would give a wrong signature."""
    with pytest.raises(AssertionError):
        headers("msg_r", BODY, [NEW], datetime.now(timezone(timedelta(hours=2))))
    with pytest.raises(AssertionError):
        headers("msg_r", BODY, [NEW], datetime.now())  # the mistake itself


def test_the_first_start_makes_a_secret_for_its_owner_only(tmp_path):
    home = tmp_path / "new"
    path = make_secret(home)
    assert path == default_file(home)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(base64.b64decode(path.read_text().strip().removeprefix("whsec_"))) == 32
    assert [path] == list(home.iterdir())


def test_the_next_start_keeps_it(tmp_path):
    before = make_secret(tmp_path).read_text()
    assert make_secret(tmp_path).read_text() == before


def test_two_first_starts_at_once_agree(tmp_path):
    seen, barrier = [], threading.Barrier(8)

    def start():
        barrier.wait()
        make_secret(tmp_path)
        seen.append(read_secrets("default", tmp_path, None))

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 8
    assert len(set(seen)) == 1


def test_the_configured_secret_wins_over_the_file(tmp_path):
    make_secret(tmp_path)
    assert read_secrets("default", tmp_path, NEW) == (NEW,)


def test_named_secrets_lie_in_their_folder(tmp_path):
    folder = tmp_path / "webhook_secrets"
    folder.mkdir()
    (folder / "shop").write_text(f"{NEW}\n{OLD}\n")
    assert read_secrets("shop", tmp_path, OLD) == (NEW, OLD)


def test_a_secret_is_read_anew_each_time(tmp_path):
    default_file(tmp_path).write_text(OLD)
    assert read_secrets("default", tmp_path, None) == (OLD,)
    default_file(tmp_path).write_text(NEW)
    assert read_secrets("default", tmp_path, None) == (NEW,)


@pytest.mark.parametrize("name", ["", "../webhook_secret", "a/b", ".", "a.b", "x" * 65, "shop"])
def test_a_secret_that_is_not_there_is_said(tmp_path, name):
    make_secret(tmp_path)
    with pytest.raises(NoSecret):
        read_secrets(name, tmp_path, None)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  \n",
        "secret",
        "whsec_",
        "whsec_AAAA",
        "whsec_*" + "A" * 43,
        OLD.removeprefix("whsec_"),
    ],
)
def test_a_weak_or_broken_secret_is_not_used(tmp_path, text):
    with pytest.raises(NoSecret):
        read_secrets("default", tmp_path, text)
    default_file(tmp_path).write_text(text)
    with pytest.raises(NoSecret):
        read_secrets("default", tmp_path, None)


def test_an_unreadable_file_is_said(tmp_path):
    default_file(tmp_path).write_bytes(os.urandom(8) + b"\xff")
    with pytest.raises(NoSecret):
        read_secrets("default", tmp_path, None)


def test_a_secret_is_its_tenants_own(tmp_path):
    """Else a tenant could have its own words signed in another one's name, and pass them on."""
    folder = tmp_path / "webhook_secrets"
    folder.mkdir()
    (folder / "shop").write_text(OLD)
    (folder / "anna--shop").write_text(NEW)
    assert read_secrets("shop", tmp_path, None) == (OLD,)
    assert read_secrets("shop", tmp_path, None, "anna") == (NEW,)
    for name, tenant in (("shop", "bert"), ("anna--shop", "default"), ("anna--shop", "bert")):
        with pytest.raises(NoSecret):
            read_secrets(name, tmp_path, None, tenant)
