"""`lockstep session` list, show and verify: what is there, and whether it is whole."""

import time
from io import StringIO

import pytest
from rich.console import Console

from ingest.command.main import run
from ingest.command.session.fit import served
from ingest.command.session.look import table_of
from tests.ingest.command.session.asked import asked, refused
from tests.ingest.kept_sessions import keep, paths_of


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
