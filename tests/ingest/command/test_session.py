"""`lockstep session` on real files: what it lists, shows, checks, carries, forks and forgets."""

import json
import os
import time
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from ingest.command.main import run
from ingest.command.session.fit import served
from ingest.command.session.look import table_of
from kv_tier.files import DiskError, DiskFull
from tests.ingest.kept_sessions import NODE, keep, paths_of, tier_at
from workers.settings import settings

GGUF = Path(__file__).parents[2] / "golden" / "tiny_llama.Q4_0.gguf"


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """A home's models folder with a tiny model."""
    from workers.model import catalog

    home = tmp_path_factory.mktemp("packed")
    catalog.add(GGUF, "tiny", home, progress=None)
    return home / "models"


@pytest.fixture
def home(tmp_path, packed, monkeypatch, redis_url):
    home = tmp_path / "home"
    home.mkdir()
    (home / "models").symlink_to(packed)
    monkeypatch.setenv("LOCKSTEP_HOME", str(home))
    monkeypatch.setenv("LOCKSTEP_MODEL", "tiny")
    monkeypatch.setenv("LOCKSTEP_REDIS_URL", redis_url)
    settings.cache_clear()
    yield home
    settings.cache_clear()


@pytest.fixture
def tier(home):
    tier = tier_at(home)
    yield tier
    tier.close()


@pytest.fixture
def store(redis_url):
    from workers.store import Store
    from workers.wire import Keys

    return Store(redis_url, Keys("lockstep"))


def asked(capsys, *arguments):
    """Exit code and JSON of a command."""
    capsys.readouterr()
    code = run(["session", *arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def refused(capsys, *arguments):
    """Exit code and sentence of a command that does not do it."""
    capsys.readouterr()
    code = run(["session", *arguments])
    return code, capsys.readouterr().err


NAMES = ["list", "show", "verify", "export", "import", "fork", "pin", "unpin", "rm", "gc"]


@pytest.mark.parametrize("name", NAMES)
def test_every_command_explains_itself(home, capsys, name):
    assert run(["session", name, "--help"]) == 0
    assert "--json" in capsys.readouterr().out


# --- list ---


def test_an_empty_list_says_how_to_begin(home, capsys):
    assert run(["session", "list"]) == 0
    assert "session_id" in capsys.readouterr().out
    assert asked(capsys, "list") == (0, {"sessions": [], "total": 0})


def test_the_one_used_last_comes_first(tier, capsys):
    keep(tier, "old", used_ms=1)
    keep(tier, "new", used_ms=9_000_000, tenant="acme")
    _, answer = asked(capsys, "list")
    assert [(one["id"], one["tenant"]) for one in answer["sessions"]] == [
        ("new", "acme"),
        ("old", "default"),
    ]


def test_a_row_says_what_it_takes(tier, capsys):
    made = keep(tier, "talk")
    (row,) = asked(capsys, "list")[1]["sessions"]
    on_disk = sum(path.stat().st_size for path in paths_of(tier, made))
    assert (row["tokens"], row["kv_tokens"], row["checkpoints"]) == (600, 599, 1)
    assert on_disk < row["kv_bytes"] < on_disk + 100_000
    assert run(["session", "list"]) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    assert all(word in line for word in ("talk", "default", "600", "MiB", "tiny", "1970-01-01"))


def test_a_name_is_shown_whole_in_a_narrow_terminal(tier, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    keep(tier, "agent-c9f9901234567890")
    assert run(["session", "list"]) == 0
    assert "agent-c9f9901234567890" in capsys.readouterr().out


@pytest.mark.parametrize("is_wide, tenants", [(False, ["default"]), (True, ["default", "acme"])])
def test_the_list_fits_into_its_terminal(is_wide, tenants):
    """It wrapped at 80 columns, and told the time in Greenwich."""
    used_ms = round(time.mktime((2026, 11, 30, 8, 15, 0, 0, 0, -1)) * 1000)
    row = {"id": "shop-conversation-17", "tokens": 12345, "kv_bytes": 3 << 30, "checkpoints": 12}
    row |= {"model": "smollm2-135m", "used_ms": used_ms, "pinned": True}
    console = Console(width=110 if is_wide else 80, soft_wrap=True, file=StringIO())
    shown = [row | {"tenant": tenant} for tenant in tenants]
    console.print(table_of(shown, is_wide=is_wide))
    lines = console.file.getvalue().splitlines()
    assert len(lines) == 1 + len(tenants) and max(map(len, lines)) <= console.width
    assert "2026-11-30 08:15:00" in lines[1]
    assert ("smollm2-135m" in lines[1]) is is_wide


def test_a_list_can_be_narrowed(tier, capsys):
    keep(tier, "a", used_ms=1)
    keep(tier, "b", used_ms=2, model="big")
    keep(tier, "c", used_ms=4_102_444_800_000, tenant="acme")
    tier.pin("default", "a", True)

    def ids(*options):
        answer = asked(capsys, "list", *options)[1]
        return "".join(one["id"] for one in answer["sessions"]), answer["total"]

    assert ids() == ("cba", 3)
    assert ids("--limit", "2") == ("cb", 3)
    assert ids("--limit", "0") == ("cba", 3)
    assert ids("--tenant", "acme") == ("c", 1)
    assert ids("--model", "big") == ("b", 1)
    assert ids("--pinned") == ("a", 1)
    assert ids("--idle", "1") == ("ba", 2)


# --- show ---


def test_a_session_shows_its_files_and_what_is_gone(tier, capsys):
    made = keep(tier, "talk")
    paths_of(tier, made)[1].unlink()
    code, told = asked(capsys, "show", "talk")
    assert (code, told["tokens"], told["last_request"]) == (0, 600, "r-1")
    places = [(o["kind"], o["begin"], o["end"], o["exists"]) for o in told["objects"]]
    assert places == [
        ("block", 0, 256, True),
        ("block", 256, 512, False),
        ("tail", 512, 599, True),
        ("state", 0, 599, True),
    ]
    assert told["messages"][1] == {"role": "assistant", "content": "hello"}
    assert run(["session", "show", "talk"]) == 0
    assert "computed again" in capsys.readouterr().out


def test_a_session_of_the_served_model_is_usable(tier, capsys):
    keep(tier, "talk", node=served())
    told = asked(capsys, "show", "talk")[1]
    assert (told["usable"], told["why_not"]) == (True, None)


@pytest.mark.parametrize(
    "changes, reason",
    [
        ({"weights_digest": "00" * 8, "model": "big"}, "made with 'big'"),
        ({"arithmetic_version": "0"}, "of the arithmetic"),
    ],
)
def test_a_session_of_another_kind_says_why_it_is_not(tier, capsys, changes, reason):
    keep(tier, "talk", node=served(), **changes)
    told = asked(capsys, "show", "talk")[1]
    assert told["usable"] is False and reason in told["why_not"]


# --- verify ---


def test_sound_files_are_sound(tier, capsys):
    keep(tier, "talk")
    expected = {"files": 5, "damaged": [], "missing": []}
    assert asked(capsys, "verify", "talk") == (0, expected)
    assert asked(capsys, "verify", "--all") == (0, expected)


@pytest.mark.parametrize("which", range(4))
def test_a_damaged_object_is_named(tier, capsys, which):
    path = paths_of(tier, keep(tier, "talk"))[which]
    data = bytearray(path.read_bytes())
    data[-2000] ^= 1
    path.write_bytes(data)
    keep(tier, "other", num_tokens=300)
    assert asked(capsys, "verify", "other")[0] == 0
    for arguments in (["talk"], ["--all"]):
        code, told = asked(capsys, "verify", *arguments)
        assert (code, [one["path"] for one in told["damaged"]]) == (1, [str(path)])
    code, sentence = refused(capsys, "verify", "talk")
    assert code == 1 and "computed again" in sentence


def test_a_damaged_manifest_is_named(tier, capsys):
    keep(tier, "talk")
    (path,) = tier.sessions.folder("default", "talk").glob("*.manifest")
    path.write_bytes(path.read_bytes()[:-1])
    code, told = asked(capsys, "verify", "talk")
    assert (code, told["damaged"][0]["path"]) == (1, str(path))


def test_what_is_gone_is_missed_but_no_damage(tier, capsys):
    path = paths_of(tier, keep(tier, "talk"))[0]
    path.unlink()
    code, told = asked(capsys, "verify", "talk")
    assert (code, told["missing"], told["damaged"]) == (0, [str(path)], [])


def test_verify_wants_to_know_what(home, capsys):
    assert refused(capsys, "verify")[0] == 2


# --- export and import ---


def test_a_session_is_carried_under_another_id(tier, capsys, tmp_path):
    made = keep(tier, "talk", node=served())
    file = str(tmp_path / "talk.session")
    code, told = asked(capsys, "export", "talk", file)
    assert (code, told["tokens"], told["left"]) == (0, 600, 0)
    code, told = asked(capsys, "import", file, "--id", "again", "--tenant", "acme")
    assert (code, told["id"], told["objects"]) == (0, "again", 3)
    assert tier.sessions.head("acme", "again").token_ids == made.token_ids
    assert asked(capsys, "verify", "again", "--tenant", "acme")[0] == 0


def test_a_session_of_another_model_is_not_imported_but_its_log(tier, capsys, tmp_path):
    keep(tier, "talk")
    file = str(tmp_path / "f")
    asked(capsys, "export", "talk", file)
    code, sentence = refused(capsys, "import", file, "--id", "b")
    assert code == 1 and "this node serves" in sentence and "--log-only" in sentence
    code, told = asked(capsys, "import", file, "--id", "b", "--log-only")
    assert (code, told["kv_tokens"], told["tokens"]) == (0, 0, 600)


def test_a_damaged_file_is_not_imported(tier, capsys, tmp_path):
    keep(tier, "talk", node=served())
    file = tmp_path / "f"
    asked(capsys, "export", "talk", str(file))
    file.write_bytes(file.read_bytes()[:-100])
    code, sentence = refused(capsys, "import", str(file), "--id", "b")
    assert code == 1 and str(file) in sentence
    assert tier.sessions.head("default", "b") is None


def test_an_import_needs_the_model_to_compare_with(tier, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("LOCKSTEP_MODEL", "nowhere")
    settings.cache_clear()
    code, sentence = refused(capsys, "import", str(tmp_path / "f"))
    assert code == 1 and "'nowhere' is not here" in sentence


# --- fork, pin, rm, gc ---


def test_a_fork_shares_every_file(tier, capsys):
    made = keep(tier, "talk")
    code, told = asked(capsys, "fork", "talk", "branch")
    assert (code, told) == (
        0,
        {"id": "branch", "forked_from": "talk", "tokens": 600, "kv": 599},
    )
    assert tier.sessions.head("default", "branch").blocks == made.blocks


def test_a_fork_can_keep_less(tier, capsys):
    keep(tier, "talk")
    assert asked(capsys, "fork", "talk", "branch", "--at", "300")[1]["tokens"] == 300
    code, sentence = refused(capsys, "fork", "talk", "third", "--at", "601")
    assert code == 2 and "600 tokens" in sentence


def test_a_fork_does_not_replace_a_session(tier, capsys):
    keep(tier, "talk")
    keep(tier, "branch", num_tokens=10)
    code, sentence = refused(capsys, "fork", "talk", "branch")
    assert code == 1 and "already" in sentence
    assert len(tier.sessions.head("default", "branch").token_ids) == 10


def test_a_pin_is_set_and_taken_away(tier, capsys):
    keep(tier, "talk")
    assert asked(capsys, "pin", "talk") == (0, {"id": "talk", "pinned": True})
    assert asked(capsys, "show", "talk")[1]["pinned"] is True
    assert asked(capsys, "unpin", "talk") == (0, {"id": "talk", "pinned": False})
    assert asked(capsys, "show", "talk")[1]["pinned"] is False


def test_a_removed_session_takes_its_own_files_along(tier, capsys):
    made = keep(tier, "talk")
    code, told = asked(capsys, "rm", "talk")
    assert code == 0 and told["bytes"] > 0
    assert not any(path.exists() for path in paths_of(tier, made))
    assert refused(capsys, "show", "talk")[0] == 1


def test_what_a_fork_shares_stays(tier, capsys):
    made = keep(tier, "talk")
    tier.fork("default", "talk", "branch")
    assert asked(capsys, "rm", "talk")[0] == 0
    assert all(path.exists() for path in paths_of(tier, made))
    assert asked(capsys, "verify", "branch")[0] == 0


def test_a_session_in_use_is_not_removed_unless_forced(tier, capsys, store):
    keep(tier, "talk")
    store.redis.hset(store.keys.session("talk"), mapping={"holder": "r-7"})
    code, sentence = refused(capsys, "rm", "talk")
    assert code == 1 and "'r-7'" in sentence and "--force" in sentence
    assert tier.sessions.head("default", "talk") is not None
    assert asked(capsys, "rm", "talk", "--force")[0] == 0
    assert tier.sessions.head("default", "talk") is None


@pytest.fixture
def known(store):
    """The store knows that a turn of `talk` was committed."""
    store.redis.hset(store.keys.session("talk"), mapping={"fence": 3, "generation": 7})
    return lambda: store.session("talk").get("generation")


def test_what_is_removed_may_begin_anew(tier, capsys, known):
    keep(tier, "talk")
    assert asked(capsys, "rm", "talk")[0] == 0
    assert known() is None


def test_a_session_whose_files_somebody_deleted_can_be_removed(tier, capsys, known):
    assert asked(capsys, "rm", "talk") == (0, {"id": "talk", "removed": True, "bytes": 0})
    assert known() is None
    assert refused(capsys, "rm", "talk")[0] == 1


def test_a_damaged_session_can_be_removed(tier, capsys):
    keep(tier, "talk")
    for path in (tier.root / "sessions" / "default" / "talk").glob("*.manifest"):
        path.write_bytes(b"no manifest")
    assert asked(capsys, "rm", "talk")[0] == 0
    assert refused(capsys, "rm", "talk")[0] == 1


def test_what_gc_takes_for_its_age_may_begin_anew(tier, capsys, known, monkeypatch):
    monkeypatch.setenv("LOCKSTEP_SESSION_TTL_S", "60")
    settings.cache_clear()
    keep(tier, "talk")
    assert asked(capsys, "gc")[1]["sessions"] == 1
    assert known() is None


@pytest.mark.parametrize("how", ["fork", "import"])
def test_what_is_made_is_not_taken_for_what_was_there_before(tier, capsys, known, tmp_path, how):
    keep(tier, "other", node=served())
    file = str(tmp_path / "f")
    assert asked(capsys, "export", "other", file)[0] == 0
    words = ["fork", "other", "talk"] if how == "fork" else ["import", file, "--id", "talk"]
    assert asked(capsys, *words)[0] == 0
    assert known() == 1  # its own, not the one of what had that name


def test_a_session_of_another_tenant_is_held_by_its_own_requests(tier, capsys, store):
    keep(tier, "talk", tenant="acme")
    store.redis.hset(store.keys.session("acme--talk"), mapping={"holder": "r-7"})
    assert refused(capsys, "rm", "talk", "--tenant", "acme")[0] == 1


def test_without_a_store_nothing_runs_and_rm_goes_on(tier, capsys, monkeypatch, free_port):
    keep(tier, "talk")
    monkeypatch.setenv("LOCKSTEP_REDIS_URL", f"redis://127.0.0.1:{free_port()}/0")
    settings.cache_clear()
    assert asked(capsys, "rm", "talk")[0] == 0


def test_gc_says_what_would_go_and_takes_it(home, capsys):
    hour_ago = tier_at(home)
    hour_ago._now_ms = hour_ago.ledger._now_ms = lambda: 3_600_000
    made = keep(hour_ago, "talk")
    path = paths_of(hour_ago, made)[0]
    hour_ago.close()
    for manifest in (home / "kv" / "sessions").rglob("*.manifest"):
        manifest.unlink()
    (home / "kv" / "ledger.sqlite").unlink()
    os.utime(path, (3600, 3600))
    code, told = asked(capsys, "gc", "--dry-run")
    assert (code, told["objects"], told["dry_run"]) == (0, 1, True)
    assert told["bytes"] == path.stat().st_size
    assert asked(capsys, "gc")[1]["objects"] == 1
    assert not path.exists()


# --- what goes wrong ---


@pytest.mark.parametrize("name", ["../x", "a/b", "", "a--b", "x" * 65, "ü", ".."])
@pytest.mark.parametrize("command", ["show", "verify", "rm", "pin", "unpin"])
def test_a_name_that_is_none_is_refused(home, capsys, command, name):
    code, sentence = refused(capsys, command, "--", name)
    assert code == 2 and "letters" in sentence


@pytest.mark.parametrize("command", ["show", "verify", "rm", "pin", "unpin"])
def test_an_unknown_session_is_said_to_be_unknown(home, capsys, command):
    code, sentence = refused(capsys, command, "nobody")
    assert code == 1 and "'nobody'" in sentence and "session list" in sentence


@pytest.mark.parametrize("error, hint", [(DiskFull, "gc"), (DiskError, "verify")])
def test_a_disk_that_fails_ends_in_a_sentence(home, capsys, monkeypatch, error, hint):
    def fail(config):
        raise error(home, OSError(28, "no space left"))

    monkeypatch.setattr("ingest.command.session.opened.open_tier", fail)
    code, sentence = refused(capsys, "list")
    assert code == 1 and hint in sentence and "Traceback" not in sentence


def test_the_node_is_what_the_served_model_makes(home):
    node = served()
    assert node.model == "tiny" and node.sizes.state_bytes == 0
    assert replace(node, sizes=NODE.sizes) != NODE


@pytest.fixture
def shared(home, tmp_path, monkeypatch):
    """An object store, of which the node knows."""
    monkeypatch.setenv("LOCKSTEP_KV_STORE_URL", f"file://{tmp_path}/shared")
    settings.cache_clear()
    return tmp_path / "shared"


def test_a_session_is_sent_once_and_fetched_again(tier, capsys, shared):
    keep(tier, "talk", node=served())
    code, told = asked(capsys, "push", "talk")
    assert (code, told["sessions"], told["left"], told["failed"]) == (0, 1, 0, {})
    assert told["sent"] > 1 and told["bytes"] > 16384
    assert asked(capsys, "push", "--all")[1]["sent"] == 0
    tier.sessions.drop("default", "talk")
    tier.collect()
    code, here = asked(capsys, "pull", "talk")
    assert (code, here["left"]) == (0, 0) and here["tokens"] == here["kv_tokens"] + 1
    assert asked(capsys, "verify", "talk")[1]["damaged"] == []
    assert asked(capsys, "pull", "talk")[1]["objects"] == 0  # it is here


def test_what_cannot_be_sent_or_fetched_is_said(tier, capsys, shared, monkeypatch):
    keep(tier, "talk", node=served())
    code, told = asked(capsys, "push", "nobody")
    assert code == 1 and "there is no session 'nobody'" in told["failed"]["nobody"]
    assert "nobody has session 'nobody'" in refused(capsys, "pull", "nobody")[1]
    assert refused(capsys, "push")[0] == refused(capsys, "push", "talk", "--all")[0] == 2
    monkeypatch.setenv("LOCKSTEP_KV_STORE_URL", "")
    settings.cache_clear()
    assert "LOCKSTEP_KV_STORE_URL is not set" in refused(capsys, "push", "talk")[1]


def test_a_session_in_use_is_not_pulled(tier, capsys, shared, store):
    store.redis.hset(store.keys.session("talk"), mapping={"holder": "r-7"})
    assert "in use" in refused(capsys, "pull", "talk")[1]


def test_what_is_removed_goes_from_the_object_store_too(tier, capsys, shared):
    keep(tier, "talk", node=served())
    assert asked(capsys, "push", "talk")[0] == 0
    assert list(shared.glob("sessions/*/*/*.manifest"))
    assert asked(capsys, "rm", "talk")[0] == 0
    assert not list(shared.glob("sessions/*/*/*.manifest"))
