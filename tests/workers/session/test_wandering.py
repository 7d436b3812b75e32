"""Sessions that wander between nodes which die, lose their disks and come back with old files.

Whatever happens, a turn's prompt begins with all that was said before, and its answer is the one
that an undisturbed engine gives. Made by seed, so that it can be seen again.
"""

import random
import shutil

import pytest

from kv_tier.remote.bucket import Bucket
from tests.workers.queue.conftest import stop_all
from tests.workers.session.conftest import LONG, Pools

SESSIONS = ("s", "t", "u")
pytestmark = pytest.mark.slow


class Wanderers:
    """Two nodes, with an object store or the token log alone; what was said in each session."""

    def __init__(self, redis_url, folder, tiny_home, model, store):
        self.url = f"file://{folder}/shared" if store else ""
        self.nodes, self.running, self.said, self.number = {}, {}, {}, 0
        for name in "ab":
            home = folder / name
            home.mkdir()
            (home / "models").symlink_to(tiny_home / "models")
            self.nodes[name] = Pools(redis_url, home, model)
            self.start(name)

    def start(self, name):
        more = {"LOCKSTEP_KV_STORE_URL": self.url, "LOCKSTEP_KV_STORE_IDLE_S": "1"}
        self.running[name] = self.nodes[name].start(LOCKSTEP_NODE=name, **more)

    def turn(self, random, judge, name=None):
        """One more message in one of the sessions, on one of the nodes."""
        self.number += 1
        name, session = name or random.choice("ab"), random.choice(SESSIONS)
        pools, request_id = self.nodes[name], f"r{self.number}"
        content = LONG if session not in self.said else random.choice(["Go on.", "Why?", "Ha!"])
        pools.say(request_id, content, session=session, pool=f"cpu@{name}", max_tokens=6)
        prompt = list(pools.request(request_id).token_ids)
        before = self.said.get(session, [])
        assert prompt[: len(before)] == before, (request_id, session, name)
        assert judge.agrees(pools, request_id)
        self.said[session] = prompt + pools.token_ids(request_id)

    def kill(self, name, *, wipe):
        pools = self.nodes[name]
        pools.kill(self.running[name])
        if wipe:
            shutil.rmtree(pools.home / "kv", ignore_errors=True)


@pytest.fixture(params=[True, False], ids=["store", "log"])
def wanderers(redis_url, tmp_path, tiny_home, model, request):
    wanderers = Wanderers(redis_url, tmp_path, tiny_home, model, request.param)
    yield wanderers
    stop_all([process for pools in wanderers.nodes.values() for process in pools.started])


@pytest.mark.parametrize("seed", [1, 2])
def test_no_turn_is_lost_and_no_bit_differs(wanderers, judge, seed):
    chance = random.Random(seed)
    for _ in range(8):
        for _ in range(chance.randint(1, 4)):
            wanderers.turn(chance, judge)
        name, other = chance.sample("ab", 2)
        wanderers.kill(name, wipe=chance.random() < 0.5)
        for _ in range(chance.randint(0, 2)):
            wanderers.turn(chance, judge, other)
        wanderers.start(name)
    if wanderers.url:
        assert list(Bucket(wanderers.url).list("sessions"))
