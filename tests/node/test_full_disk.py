"""A node whose sessions have a small disk of their own, which fills up under its conversations.

The disk is a tmpfs, so that the kernel itself says ENOSPC. Where none may be mounted, the test that
needs it is skipped: what stands in for it are the seams of tests/kv_tier/test_disk_full.py and of
tests/workers/session/test_trouble.py, which refuse each operation in turn.
"""

import errno
import json
import subprocess
import sys
import threading

import httpx
import pytest

from tests.node.running_node import ROOT, Node, wait_for

STORY = "Tell me about a lighthouse keeper and the sea. " * 16
ASKED = (STORY, "Go on: 0.", "Go on: 1.", "Go on: 2.")
DISK_MIB, QUOTA_MIB = 40, 24  # a turn of this story takes 4
LOOK_S = 0.1
TIMEOUT_S = 120


@pytest.fixture(scope="module")
def home(tmp_path_factory, model_home):
    """With a disk of its own for sessions."""
    home = tmp_path_factory.mktemp("node")
    (home / "models").symlink_to(model_home / "models")
    (home / "kv").mkdir(mode=0o700)
    size = f"size={DISK_MIB}m,mode=700"
    mount = ["mount", "-t", "tmpfs", "-o", size, "tmpfs", home / "kv"]
    done = subprocess.run(mount, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no tmpfs may be mounted here: {done.stderr.strip()}")
    yield home
    umount = ["umount", home / "kv"]
    wait_for(lambda: subprocess.run(umount, capture_output=True).returncode == 0, "unmounted")


@pytest.fixture(scope="module")
def small_disk(home, free_port):
    """A node there, with one pool."""
    node = Node(
        home,
        free_port(),
        free_port(),
        LOCKSTEP_GPU="off",
        LOCKSTEP_KV_MIB="200",
        LOCKSTEP_KV_DISK_MIB=str(QUOTA_MIB),
        LOCKSTEP_KV_KEEP_FREE_MIB="1",
    )
    try:
        node.start()
        yield node
    finally:
        node.kill()


@pytest.fixture
def hog(home):
    """Somebody else's file on that disk."""
    hog = Hog(home / "kv" / "hog")
    yield hog
    hog.shrink()


class Hog:
    def __init__(self, path):
        self.path, self.times = path, 0

    def grow(self):
        """Until there is no byte left."""
        self.times += 1
        with self.path.open("ab", buffering=0) as file:
            try:
                while file.write(bytes(1 << 16)):
                    pass
            except OSError as error:
                assert error.errno == errno.ENOSPC, error

    def shrink(self):
        self.path.unlink(missing_ok=True)


def ask(node, session, messages, mode="append"):
    body = {"messages": messages, "max_tokens": 12, "temperature": 0}
    if session:
        body |= {"session_id": session, "session_mode": mode}
    return httpx.post(f"{node.url}/v1/chat/completions", json=body, timeout=TIMEOUT_S)


def text_of(answer):
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["message"]["content"]


def cached(answer):
    return answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


def said(contents, answers):
    """The history before the next answer."""
    messages = []
    for number, content in enumerate(contents[: len(answers) + 1]):
        messages.append({"role": "user", "content": content})
        if number < len(answers):
            messages.append({"role": "assistant", "content": answers[number]})
    return messages


def user(content):
    return [{"role": "user", "content": content}]


def is_written(node, session):
    return node.store.session(session).get("writing") == ""


def verified(node):
    """How `lockstep session verify --all` ends."""
    command = [sys.executable, "-m", "ingest.command.main", "session", "verify", "--all", "--json"]
    done = subprocess.run(command, env=node.environment, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def programs(node):
    return {name: node.program(name).pid for name in ("store", "api", "router", "cpu")}


@pytest.fixture(scope="module")
def alone(small_disk):
    """The answers of a conversation that has all the room it wants."""
    answers = [text_of(ask(small_disk, "undisturbed", user(content))) for content in ASKED]
    yield answers


def test_a_full_disk_is_a_reason_and_no_end_of_the_node(small_disk, alone, hog):
    node, before = small_disk, programs(small_disk)
    assert text_of(ask(node, "s", user(STORY))) == alone[0]
    wait_for(lambda: is_written(node, "s"), "written")

    hog.grow()
    lost = ask(node, "s", user(ASKED[1]))
    assert text_of(lost) == alone[1], "the answer is there"
    error = lost.json()["lockstep"]["error"]
    assert error["code"] == "session_not_saved" and "No space left" in error["message"], error
    again = ask(node, "s", said(ASKED, alone[:1]), "history")
    assert text_of(again) == alone[1], "it may be asked once more"
    refused = ask(node, "s", user(ASKED[2]))
    assert refused.status_code == 503
    assert "send the whole history" in refused.json()["error"]["message"]
    unsaved = ask(node, "new", user(STORY))
    assert text_of(unsaved) == alone[0]
    assert unsaved.json()["lockstep"]["error"]["code"] == "session_not_saved"
    assert text_of(ask(node, None, user(STORY))) == alone[0], "who needs no disk notices nothing"

    hog.shrink()
    assert text_of(ask(node, "s", said(ASKED, alone[:2]), "history")) == alone[2]
    wait_for(lambda: is_written(node, "s"), "written again")
    node.kill_program("cpu")  # what it knew is in files alone
    wait_for(node.is_ready, "ready")
    last = ask(node, "s", user(ASKED[3]))
    assert text_of(last) == alone[3]
    assert cached(last) > 150
    assert verified(node)["damaged"] == []
    assert programs(node) == before | {"cpu": node.program("cpu").pid}


def test_a_disk_that_is_full_again_and_again_loses_no_answer(small_disk, alone, hog):
    """Whole histories are sent: whatever was saved or not, each turn is answered, and the same."""
    node, before, done = small_disk, programs(small_disk), threading.Event()

    def come_and_go():
        while not done.is_set():
            hog.grow()
            done.wait(LOOK_S)
            hog.shrink()
            done.wait(LOOK_S)

    pest = threading.Thread(target=come_and_go)
    pest.start()
    try:
        outcomes = [one for name in ("a", "b", "c") for one in whole_talk(node, name, alone)]
    finally:
        done.set()
        pest.join()
    assert hog.times > 3 and set(outcomes) <= {"saved", "session_not_saved"}
    for name in ("a", "b", "c"):
        last = ask(node, name, said(ASKED, alone[:3]), "history")
        assert text_of(last) == alone[3] and "error" not in last.json()["lockstep"]
    assert programs(node) == before
    assert verified(node)["damaged"] == []


def whole_talk(node, session, alone):
    """What became of each turn; its answer is what it should be."""
    for turn, text in enumerate(alone[:3]):
        answer = ask(node, session, said(ASKED, alone[:turn]), "history")
        assert text_of(answer) == text
        yield answer.json()["lockstep"].get("error", {}).get("code", "saved")


def test_what_the_quota_has_no_room_for_is_computed_again(small_disk, alone, home):
    node, names = small_disk, [f"quota-{number}" for number in range(QUOTA_MIB // 4 + 1)]
    for name in names:
        answer = ask(node, name, user(STORY))
        assert text_of(answer) == alone[0] and "error" not in answer.json()["lockstep"]
        wait_for(lambda name=name: is_written(node, name), "written")
    taken = sum(path.stat().st_size for path in home.glob("kv/objects/*/*"))
    assert 0 < taken <= QUOTA_MIB << 20
    node.kill_program("cpu")
    wait_for(node.is_ready, "ready")
    for name in names:
        answer = ask(node, name, user(ASKED[1]))
        assert text_of(answer) == alone[1] and "error" not in answer.json()["lockstep"]
