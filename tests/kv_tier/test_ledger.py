"""The books: they agree with the disk, whoever keeps them, and may be lost at any moment."""

import os
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from kv_tier.ledger import RESERVED_MS, YOUNG_MS, Ledger, started_ticks
from kv_tier.ledger_rows import Room, Shortage
from kv_tier.ledger_schema import VERSION
from tests.kv_tier.talker import Talker, tokens_of

PLENTY = Room(quota_bytes=0, tenant_bytes=0, free_bytes=1 << 40, keep_free_bytes=0)
TABLES = {
    "objects": "name, tenant, bytes, tokens, parent, depth, holders, used_ms, young_ms",
    "sessions": "tenant, session_id, generation, tokens, num_kv, bytes, model, pinned, used_ms",
    "names": "object, tenant, session_id",
    "totals": "tenant, bytes, objects, sessions",
}


@pytest.fixture
def talker(tmp_path):
    talker = Talker(tmp_path / "kv")
    yield talker
    talker.close()


def fill(talker: Talker) -> None:
    """Two tenants, a shared beginning, a fork, a pin, something that nobody named."""
    common = tokens_of(1, 300)
    talker.say("anna", "one", common + tokens_of(2, 300))
    talker.say("anna", "two", common + tokens_of(3, 10))
    talker.say("bert", "one", common)
    talker.tier.fork("anna", "one", "three", 512)
    talker.tier.pin("bert", "one", True)


def books(ledger: Ledger) -> dict[str, list[tuple]]:
    """Everything in it that a scan can know, too."""

    def work(db: sqlite3.Connection) -> dict[str, list[tuple]]:
        found = {}
        for table, columns in TABLES.items():
            source = "names JOIN sessions ON id = session" if table == "names" else table
            rows = db.execute(f"SELECT {columns} FROM {source}").fetchall()
            found[table] = sorted(row for row in rows if any(row[1:]))
        return found

    return ledger._file.read(work)


def fresh(talker: Talker, tmp_path: Path) -> dict[str, list[tuple]]:
    """What a scan of the disk would write."""
    folder = tmp_path / "scan"
    folder.mkdir(exist_ok=True)
    (folder / "ledger.sqlite").unlink(missing_ok=True)
    ledger = Ledger(folder, talker.tier._census, talker.clock)
    try:
        return books(ledger)
    finally:
        ledger.close()


def without_times(found: dict[str, list[tuple]]) -> dict[str, list[tuple]]:
    """Times of objects: the scan has those of the files."""
    return found | {"objects": [row[:-2] for row in found["objects"]]}


def test_the_books_are_those_of_a_scan(talker, tmp_path):
    fill(talker)
    expected = without_times(fresh(talker, tmp_path))
    assert without_times(books(talker.tier.ledger)) == expected
    assert expected["totals"], "the scan found nothing"


def test_nobody_else_may_read_the_books(talker):
    """Found by tests/chaos: they had the mode that SQLite gives."""
    fill(talker)
    modes = {path.stat().st_mode & 0o777 for path in talker.tier.root.glob("ledger.sqlite*")}
    assert modes == {0o600}


def test_totals_are_what_lies_on_the_disk(talker):
    fill(talker)
    objects = talker.size()
    manifests = sum(row[5] for row in books(talker.tier.ledger)["sessions"])
    assert talker.tier.ledger.totals().num_bytes == objects + manifests
    by_tenant = [talker.tier.ledger.totals(tenant).num_bytes for tenant in ("anna", "bert")]
    assert sum(by_tenant) == objects + manifests
    assert min(by_tenant) > 0


def lose(path: Path) -> None:
    path.unlink()


def lose_all(path: Path) -> None:
    for file in path.parent.glob(f"{path.name}*"):
        file.unlink()


def scribble(path: Path) -> None:
    path.write_bytes(os.urandom(path.stat().st_size))


def cut_to_nothing(path: Path) -> None:
    path.with_name(path.name + "-wal").unlink(missing_ok=True)
    path.write_bytes(b"")


def other_version(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute(f"PRAGMA user_version = {VERSION + 1}")
    db.close()


ACCIDENTS = [lose, lose_all, scribble, cut_to_nothing, other_version]


@pytest.mark.parametrize("accident", ACCIDENTS)
def test_a_ledger_that_is_no_good_at_the_start_is_made_again(talker, tmp_path, accident):
    fill(talker)
    talker.close()
    accident(tmp_path / "kv" / "ledger.sqlite")
    again = Talker(tmp_path / "kv")
    assert without_times(books(again.tier.ledger)) == without_times(fresh(again, tmp_path))
    assert again.tier.ledger.session("bert", "one").pinned, "a pin is on the disk"
    again.close()


@pytest.mark.parametrize("accident", [lose, lose_all])
def test_a_ledger_that_is_lost_in_mid_use_is_made_again(talker, tmp_path, accident):
    fill(talker)
    other = Talker(tmp_path / "kv")
    accident(tmp_path / "kv" / "ledger.sqlite")
    talker.say("anna", "four", tokens_of(4, 600))
    other.say("bert", "five", tokens_of(5, 600))
    expected = without_times(fresh(talker, tmp_path))
    assert without_times(books(talker.tier.ledger)) == expected
    assert without_times(books(other.tier.ledger)) == expected
    other.close()


@pytest.mark.parametrize("accident", [scribble, cut_to_nothing])
def test_a_ledger_that_is_damaged_in_mid_use_costs_no_request(talker, tmp_path, accident):
    """Whoever finds it makes it again; the others follow."""
    fill(talker)
    accident(tmp_path / "kv" / "ledger.sqlite")
    finder = Talker(tmp_path / "kv")
    talker.say("anna", "four", tokens_of(4, 600))
    assert talker.hit("anna", tokens_of(4, 600)) == 599
    finder.tier.collect()
    expected = without_times(fresh(talker, tmp_path))
    assert without_times(books(talker.tier.ledger)) == expected
    assert without_times(books(finder.tier.ledger)) == expected
    finder.close()


def test_a_reservation_outlives_the_ledger(talker, tmp_path):
    number = talker.tier.ledger.reserve("anna", 500, PLENTY)
    lose(tmp_path / "kv" / "ledger.sqlite")
    assert talker.tier.ledger.reserved_bytes() == 500
    talker.tier.ledger.release(number)
    assert talker.tier.ledger.reserved_bytes() == 0


def test_a_reservation_follows_to_a_ledger_that_another_made(talker, tmp_path):
    talker.tier.ledger.reserve("anna", 500, PLENTY)
    lose(tmp_path / "kv" / "ledger.sqlite")
    other = Talker(tmp_path / "kv")
    assert other.tier.ledger.reserved_bytes() == 0, "it cannot know yet"
    talker.tier.ledger.totals()
    assert other.tier.ledger.reserved_bytes() == 500
    other.close()


def test_reservations_of_a_process_that_is_no_more_are_released(talker, tmp_path):
    code = (
        "import sys; from pathlib import Path; from tests.kv_tier.talker import Talker\n"
        "from tests.kv_tier.test_ledger import PLENTY\n"
        "Talker(Path(sys.argv[1])).tier.ledger.reserve('anna', 700, PLENTY)\n"
        "import os; os._exit(9)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "kv")], cwd=Path.cwd())
    ledger = talker.tier.ledger
    kept = ledger.reserve("anna", 100, PLENTY)
    assert ledger.reserved_bytes() == 800
    assert ledger.release_dead() == 1
    assert ledger.reserved_bytes() == 100
    talker.clock.ms += RESERVED_MS + 1
    assert ledger.release_dead() == 1, "too old to be anybody's"
    ledger.release(kept)


KILLED = """
import sys
from pathlib import Path
from tests.kv_tier.talker import Talker, tokens_of
talker = Talker(Path(sys.argv[1]))
talker.say("anna", "first", [1, 2, 3])
print("begun", flush=True)
for turn in range(1, 1000):
    talker.say("anna", f"s{turn % 5}", tokens_of(turn % 5, 100 + 40 * turn))
    if turn % 4 == 0:
        talker.tier.fork("anna", f"s{turn % 5}", f"fork{turn}")
    if turn % 9 == 0:
        talker.tier.drop("anna", f"s{(turn + 1) % 5}")
"""


@pytest.mark.parametrize("seconds", [0.05, 0.2, 0.5])
def test_books_that_a_killed_writer_left_are_mended_by_collect(talker, tmp_path, seconds):
    command = [sys.executable, "-c", KILLED, str(tmp_path / "kv")]
    writer = subprocess.Popen(command, cwd=Path.cwd(), stdout=subprocess.PIPE)
    assert writer.stdout.readline() == b"begun\n"
    time.sleep(seconds)
    writer.kill()
    writer.wait()
    talker.tier.collect()
    found, expected = books(talker.tier.ledger), fresh(talker, tmp_path)
    assert found["sessions"] == expected["sessions"] != []
    assert found["totals"] == expected["totals"]
    assert found["names"] == expected["names"]
    assert talker.tier.ledger.reserved_bytes() == 0


def test_another_process_of_the_same_number_is_another_process():
    assert started_ticks(os.getpid()) == started_ticks(os.getpid()) is not None
    assert started_ticks(os.getpid()) != started_ticks(1)
    assert started_ticks(2**22 + 1) is None


@pytest.mark.parametrize(
    ("room", "expected"),
    [
        (Room(100, 0, 1000, 0), Shortage(0, 0)),
        (Room(90, 0, 1000, 0), Shortage(10, 0)),
        (Room(0, 70, 1000, 0), Shortage(0, 30)),
        (Room(0, 0, 1000, 950), Shortage(50, 0)),
        (Room(90, 70, 1000, 950), Shortage(50, 30)),
    ],
)
def test_what_has_to_go_first(talker, room, expected):
    """40 bytes of the tenant's are reserved, 60 are wanted."""
    ledger = talker.tier.ledger
    ledger.reserve("anna", 40, PLENTY)
    answer = ledger.reserve("anna", 60, room)
    if expected == Shortage(0, 0):
        assert isinstance(answer, int)
    else:
        assert answer == expected
        assert ledger.reserved_bytes() == 40, "nothing was reserved"


def test_another_tenant_does_not_count_for_one_tenants_quota(talker):
    ledger = talker.tier.ledger
    ledger.reserve("bert", 1000, PLENTY)
    assert isinstance(ledger.reserve("anna", 60, Room(0, 60, 1 << 40, 0)), int)


def test_threads_do_not_lose_each_others_entries(talker):
    def work(number: int) -> None:
        for turn in range(3):
            talker.say("anna", f"s{number}", tokens_of(number, 300 + turn))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    totals = talker.tier.ledger.totals()
    assert (totals.num_sessions, totals.num_objects) == (6, 6 * 4)
    assert talker.tier.ledger.reserved_bytes() == 0


def test_the_connections_of_ended_threads_are_closed(talker):
    for _ in range(5):
        thread = threading.Thread(target=talker.tier.ledger.totals)
        thread.start()
        thread.join()
    talker.tier.ledger.totals()
    assert len(talker.tier.ledger._file._lines) == 1


def test_sessions_are_listed_in_pages(talker):
    fill(talker)
    ledger = talker.tier.ledger
    rows = ledger.list_sessions(limit=3)
    assert [(r.tenant, r.session_id) for r in rows] == [
        ("anna", "one"),
        ("anna", "three"),
        ("anna", "two"),
    ]
    (last,) = ledger.list_sessions(limit=3, after=(rows[-1].tenant, rows[-1].session_id))
    assert (last.tenant, last.session_id, last.pinned, last.num_tokens) == (
        "bert",
        "one",
        True,
        300,
    )
    assert [row.tenant for row in ledger.list_sessions("bert")] == ["bert"]
    assert ledger.list_sessions("nobody") == []
    assert ledger.session("bert", "one") == last
    assert ledger.session("bert", "two") is None


def test_what_is_fetched_again_is_worth_more(talker):
    def values() -> dict[bytes, float]:
        query = "SELECT name, value FROM objects"
        return talker.tier.ledger._file.read(lambda db: dict(db.execute(query)))

    talker.say("anna", "one", tokens_of(1, 700))
    before = values()
    assert talker.hit("anna", tokens_of(1, 600)) == 512
    after = values()
    assert sum(after[name] > before[name] for name in before) == 2, "both blocks, not the tail"


def test_a_written_object_waits_for_its_manifest_only_so_long(talker):
    talker.tier.put("anna", talker.sources("anna", tokens_of(1, 300)))
    assert talker.tier.ledger.orphans() == []
    talker.clock.ms += YOUNG_MS
    assert len(talker.tier.ledger.orphans()) == 2
