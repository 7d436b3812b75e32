"""Secrets stay out of what people read: log lines, tracebacks, settings that are printed."""

import pytest
from pydantic import ValidationError

from workers.log import HIDDEN, logger
from workers.settings import Settings, complaints, settings

KEY = "lsk-" + "Q" * 43
HOOK = "whsec_" + "c2VjcmV0" * 4
URL = "rediss://user:hunter2-hunter2@redis.example:6379/0"


@pytest.fixture
def configured(monkeypatch):
    monkeypatch.setenv("LOCKSTEP_REDIS_URL", URL)
    monkeypatch.setenv("LOCKSTEP_WEBHOOK_SECRET", HOOK)
    monkeypatch.setenv("LOCKSTEP_STORE_PASSWORD", "correct-horse-battery")
    settings.cache_clear()
    yield settings()
    settings.cache_clear()


@pytest.mark.parametrize(
    ("said", "secret"),
    [
        (f"refused {KEY}", KEY),
        (f"Authorization: Bearer {KEY[4:]}", KEY[4:]),
        (f"signed with {HOOK}", HOOK),
        (f"connecting to {URL}", "hunter2-hunter2"),
        ("told 'hunter2-hunter2'", "hunter2-hunter2"),
        ("AUTH correct-horse-battery", "correct-horse-battery"),
        ("GET https://anna:pw@hook.example/", "anna:pw"),
    ],
)
def test_a_log_line_hides_them(configured, capsys, said, secret):
    logger("api").warning(said, value=said)
    try:
        raise ValueError(said)
    except ValueError:
        logger("api").exception("it failed")
    line = capsys.readouterr().err
    assert secret not in line and HIDDEN in line and "Traceback" in line


def test_what_is_no_secret_stays(configured, capsys):
    said = "https://redis.example/path lsk- whsec_ bearer of news user@host"
    logger("api").warning(said)
    assert said in capsys.readouterr().err


def test_settings_that_are_printed_hide_them(configured):
    for secret in ("hunter2", HOOK, "correct-horse"):
        assert secret not in repr(configured) and secret not in str(configured)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("redis_url", "http://user:hunter2@x/"),
        ("redis_url", "redis://user:hun#ter2@x:6379/0"),
        ("store_password", "hunter2"),
    ],
)
def test_a_wrong_setting_is_named_and_not_told(name, value):
    with pytest.raises(ValidationError) as caught:
        Settings(**{name: value})
    for told in (str(caught.value), *complaints(caught.value)):
        assert "hun" not in told and name.upper() in told.upper()
