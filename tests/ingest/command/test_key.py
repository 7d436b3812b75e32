"""API keys from the shell: a secret is printed once, rotates with an overlap, can be taken away."""

import json

import pytest

from ingest.access.keys import hash_of
from ingest.command.main import run
from workers.settings import settings
from workers.store import Store


@pytest.fixture
def store(redis_url, monkeypatch):
    monkeypatch.setenv("LOCKSTEP_REDIS_URL", redis_url)
    settings.cache_clear()
    yield Store.of(settings())
    settings.cache_clear()


@pytest.fixture
def ask(store, capsys):
    """Exit code, and the JSON or the sentence of a command."""

    def asked(*arguments):
        capsys.readouterr()
        code = run(["key", *arguments, "--json"])
        out, err = capsys.readouterr()
        return code, json.loads(out) if out else err

    return asked


def test_a_secret_is_printed_once_and_only_its_hash_is_kept(ask, store):
    code, told = ask("add", "shop", "--tenant", "acme", "--scope", "infer", "--concurrent", "3")
    assert (code, told["tenant"], told["scopes"]) == (0, "acme", ["infer"])
    assert told["limits"] == {"requests_per_min": 0, "tokens_per_min": 0, "concurrent": 3}
    kept = b"".join(store.redis.hgetall("lockstep:keys").values())
    assert told["secret"].startswith("lsk-") and told["secret"].encode() not in kept
    assert hash_of(told["secret"]).encode() in kept
    _, listed = ask("list")
    assert [key["id"] for key in listed["keys"]] == ["shop"]
    assert told["secret"] not in json.dumps(listed) and "hash" not in json.dumps(listed)


def test_a_secret_stands_alone_on_stdout(store, capsys):
    assert run(["key", "add", "shop"]) == 0
    out, err = capsys.readouterr()
    assert out.strip().startswith("lsk-") and len(out.split()) == 1
    assert "again" in err


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("a b",), "name"),
        (("a" * 65,), "name"),
        (("k", "--tenant", "../x"), "tenant"),
        (("k", "--tenant", "Acme"), "tenant"),
        (("k", "--scope", "root"), "scope"),
        (("k", "--expires", "soon"), "--expires"),
        (("k", "--expires", "-1d"), "--expires"),
    ],
)
def test_what_is_no_key_is_refused_in_words(ask, arguments, word):
    code, sentence = ask("add", *arguments)
    assert code == 2 and word in sentence
    assert ask("list")[1] == {"keys": []}


def test_a_name_is_given_once(ask):
    assert ask("add", "shop")[0] == 0
    code, sentence = ask("add", "shop")
    assert code == 2 and "rotate" in sentence


def test_what_is_not_there_cannot_be_rotated_or_removed(ask):
    for command in ("rotate", "remove"):
        code, sentence = ask(command, "nobody")
        assert code == 1 and "'nobody'" in sentence


def test_a_rotated_key_stays_the_same_key(ask):
    _, first = ask("add", "shop", "--tenant", "acme", "--expires", "90d")
    code, second = ask("rotate", "shop", "--overlap", "2h")
    assert code == 0 and second["secret"] != first["secret"]
    assert (second["tenant"], second["expires_ms"]) == ("acme", first["expires_ms"])
    assert second["old_until_ms"] > first["created_ms"]


def test_a_removed_key_is_gone(ask):
    ask("add", "shop")
    assert ask("remove", "shop") == (0, {"id": "shop", "removed": True})
    assert ask("list")[1] == {"keys": []}


def test_whoever_removes_the_last_key_is_told_what_is_open(store, capsys):
    for name in ("shop", "till"):
        assert run(["key", "add", name]) == 0
    capsys.readouterr()
    assert run(["key", "remove", "shop"]) == 0
    assert "open to" not in capsys.readouterr().err
    assert run(["key", "remove", "till"]) == 0
    assert "open to" in capsys.readouterr().err
