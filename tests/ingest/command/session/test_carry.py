"""`lockstep session` export, import and fork: under another id, on another node."""

from ingest.command.session.fit import served
from tests.ingest.command.session.asked import asked, refused
from tests.ingest.kept_sessions import keep
from workers.settings import settings


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
