"""A session goes into a file and comes out on another node, whole or not at all."""

import errno
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_tier.bundle import BLOCK, MANIFEST, BadExport, Reader, Writer
from kv_tier.carried import misfit
from kv_tier.dump import verify_file
from kv_tier.export import CannotExport, export_session
from kv_tier.files import DiskError
from kv_tier.importing import CannotImport, import_session
from kv_tier.manifest import encode_manifest
from kv_tier.open_object import OpenObject, open_file
from kv_tier.sessions import BadName
from tests.ingest.kept_sessions import NODE, SIZES, keep, paths_of, tier_at


@pytest.fixture
def here(tmp_path):
    tier = tier_at(tmp_path / "here")
    yield tier
    tier.close()


@pytest.fixture
def there(tmp_path):
    tier = tier_at(tmp_path / "there")
    yield tier
    tier.close()


@pytest.fixture
def file(here, tmp_path):
    keep(here, "talk")
    export_session(here, "default", "talk", tmp_path / "talk.session")
    return tmp_path / "talk.session"


def files_under(tier):
    return sorted(p for p in tier.root.rglob("*") if p.suffix in (".block", ".tail", ".state"))


def payloads(tier, manifest):
    return [bytes(open_file(path).view()) for path in paths_of(tier, manifest)]


@pytest.mark.parametrize("num_tokens", [1, 2, 200, 257, 600, 1025])
def test_a_session_comes_out_as_it_went_in(here, there, tmp_path, num_tokens):
    made = keep(here, "talk", num_tokens=num_tokens)
    gone = export_session(here, "default", "talk", tmp_path / "f")
    came = import_session(there, tmp_path / "f", "default", None, NODE)
    head = there.sessions.head("default", "talk")
    assert (head.token_ids, head.messages, head.num_kv) == (
        made.token_ids,
        made.messages,
        made.num_kv,
    )
    assert payloads(there, head) == payloads(here, made)
    assert (gone.objects, gone.left) == (came.objects, came.left) == (len(paths_of(here, made)), 0)


def test_names_are_made_anew_for_this_node_and_tenant(file, here, there):
    came = import_session(there, file, "acme", "other", NODE).manifest
    chain = there.chain("acme", NODE.sizes.fingerprint)
    assert list(came.blocks) == chain.block_keys(came.token_ids[: came.num_kv])
    assert came.tail == chain.key_at(came.token_ids, came.num_kv)
    assert not {path.name for path in files_under(here)} & {p.name for p in files_under(there)}
    for path in paths_of(there, came):
        verify_file(path)


def test_the_books_know_an_imported_session(file, there):
    import_session(there, file, "default", None, NODE)
    row = there.ledger.session("default", "talk")
    assert (row.num_tokens, row.num_kv, row.num_checkpoints) == (600, 599, 1)
    assert row.bytes > sum(path.stat().st_size for path in files_under(there))
    assert there.ledger.orphans() == []


def test_an_export_is_for_its_owner_alone(file):
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_file_that_is_there_is_not_overwritten(here, file):
    before = file.read_bytes()
    with pytest.raises(CannotExport, match="there already"):
        export_session(here, "default", "talk", file)
    assert file.read_bytes() == before
    assert list(file.parent.glob(".*")) == []


def test_what_is_lost_or_damaged_is_left_out_and_counted(here, there, tmp_path):
    made = keep(here, "talk")
    first, _, tail, _ = paths_of(here, made)
    first.unlink()
    data = bytearray(tail.read_bytes())
    data[5000] ^= 1
    tail.write_bytes(data)
    assert export_session(here, "default", "talk", tmp_path / "f").left == 2
    came = import_session(there, tmp_path / "f", "default", None, NODE)
    assert (came.objects, came.left, len(files_under(there))) == (2, 2, 2)


@pytest.mark.parametrize(("number", "left"), [(errno.EIO, 1), (errno.EMFILE, None)])
def test_a_sector_that_cannot_be_read_costs_its_object_alone(
    here, tmp_path, monkeypatch, number, left
):
    """A shortage of this process costs nothing: it is said, and tried again."""
    keep(here, "talk")
    verify = OpenObject.verify

    def failing(opened):
        if opened.kind == "tail":
            raise DiskError(opened.path, OSError(number, "no"))
        verify(opened)

    monkeypatch.setattr(OpenObject, "verify", failing)
    if left is None:
        with pytest.raises(DiskError):
            export_session(here, "default", "talk", tmp_path / "f")
        assert list(tmp_path.glob("*f*")) == []
    else:
        assert export_session(here, "default", "talk", tmp_path / "f").left == left


def test_of_two_exports_to_one_file_the_first_that_is_done_wins(here, there, tmp_path):
    keep(here, "talk")
    done = []

    def meanwhile(written, of):
        if not done:
            done.append(export_session(here, "default", "talk", tmp_path / "f"))

    with pytest.raises(CannotExport, match="there already"):
        export_session(here, "default", "talk", tmp_path / "f", meanwhile)
    assert import_session(there, tmp_path / "f", "default", None, NODE).objects == done[0].objects
    assert [path.name for path in tmp_path.glob("*f*")] == ["f"]


def test_an_unknown_session_is_said_to_be_unknown(here, tmp_path):
    with pytest.raises(CannotExport, match="no session 'x'"):
        export_session(here, "default", "x", tmp_path / "f")
    assert list(tmp_path.glob("*f*")) == []


@given(data=st.data())
def test_a_damaged_file_leaves_nothing_behind(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("damaged")
    here, there = tier_at(folder / "here"), tier_at(folder / "there")
    keep(here, "talk", num_tokens=300)
    export_session(here, "default", "talk", folder / "f")
    whole = bytearray((folder / "f").read_bytes())
    position = data.draw(st.integers(0, len(whole) - 1))
    if data.draw(st.booleans()):
        whole[position] ^= data.draw(st.integers(1, 255))
    else:
        del whole[position:]
    (folder / "f").write_bytes(whole)
    with pytest.raises(BadExport):
        import_session(there, folder / "f", "default", None, NODE)
    assert files_under(there) == [] and list(there.sessions.ids()) == []
    here.close()
    there.close()


OTHERS = {
    "weights": (replace(NODE, weights_digest="ff" * 8), "this node serves"),
    "arithmetic": (replace(NODE, arithmetic_version="9"), "version 1, this node computes with 9"),
    "layout": (replace(NODE, sizes=replace(SIZES, fingerprint=b"g" * 32)), "another layout"),
}


@pytest.mark.parametrize("other", OTHERS)
def test_kv_of_another_kind_is_refused_with_the_reason(file, there, other):
    node, reason = OTHERS[other]
    with pytest.raises(CannotImport, match=reason):
        import_session(there, file, "default", None, node)
    assert files_under(there) == [] and list(there.sessions.ids()) == []


def test_the_token_log_alone_is_kept_whatever_made_it(file, there):
    came = import_session(there, file, "default", None, None)
    head = there.sessions.head("default", "talk")
    assert (came.objects, head.num_kv, head.blocks, head.tail, head.checkpoints) == (
        0,
        0,
        (),
        None,
        (),
    )
    assert len(head.token_ids) == 600
    assert files_under(there) == []


def test_payloads_of_another_size_are_refused_before_anything_is_written(file, there):
    node = replace(NODE, sizes=replace(SIZES, block_bytes=4096))
    with pytest.raises(BadExport, match="another size"):
        import_session(there, file, "default", None, node)
    assert files_under(there) == []


def test_a_session_that_is_there_is_not_replaced(file, here):
    before = here.sessions.head("default", "talk")
    with pytest.raises(CannotImport, match="already"):
        import_session(here, file, "default", None, NODE)
    assert here.sessions.head("default", "talk") == before


def test_a_name_that_is_none_is_refused(file, there):
    with pytest.raises(BadName):
        import_session(there, file, "default", "../x", NODE)


def test_objects_that_the_manifest_does_not_name_are_refused(here, there, tmp_path):
    made = keep(here, "talk")
    with (tmp_path / "f").open("wb") as file:
        writer = Writer(file)
        writer.add(MANIFEST, [encode_manifest(made)])
        writer.add(BLOCK, [bytes(8192)], key=bytes(32), num_tokens=256)
        writer.close()
    with pytest.raises(BadExport, match="does not name"):
        import_session(there, tmp_path / "f", "default", None, NODE)


def test_a_file_without_a_manifest_is_refused(there, tmp_path):
    with (tmp_path / "f").open("wb") as file:
        Writer(file).close()
    with pytest.raises(BadExport, match="manifest"):
        import_session(there, tmp_path / "f", "default", None, NODE)


def test_a_file_that_is_missing_is_said_to_be_missing(there, tmp_path):
    with pytest.raises(CannotImport, match="No such file"):
        import_session(there, tmp_path / "nowhere", "default", None, NODE)


def test_who_owned_it_before_cannot_commit_any_more(file, there):
    fence = there.sessions.take("default", "talk", 0)
    came = import_session(there, file, "default", None, NODE).manifest
    assert came.fence > fence


def test_a_session_fits_what_made_it(here):
    assert misfit(keep(here, "talk"), NODE) is None


def test_the_file_can_be_read_while_it_is_checked(file):
    reader = Reader(file)
    types = [record.type for record in reader.verified()]
    reader.close()
    assert types[0] == MANIFEST and len(types) == 5
