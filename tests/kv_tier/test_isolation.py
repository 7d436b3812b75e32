"""No session ever reads a byte of another's, whatever goes on beside it.

Tenants, sessions and models that begin with the same tokens; turns, forks, deletes, evictions and
collections in several threads. Every payload says whose it is, so that a wrong one is seen.
"""

import tempfile
import threading
from contextlib import closing, suppress
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from kv_tier import files as operations
from kv_tier.budget import OverBudget, TierLimits
from kv_tier.files import OsFiles
from kv_tier.fork import NoSession, SessionExists
from kv_tier.sessions import StaleFence
from tests.kv_tier.talker import BLOCK_FILE, HYBRID, LLAMA, Talker, tokens_of

TENANTS, SESSIONS, MODELS = ("anna", "bert"), ("s1", "s2", "s3"), (LLAMA, HYBRID)
THREADS = 3
QUOTA = 14 * BLOCK_FILE + 20 * 8192  # so small that most turns evict
WHO = st.tuples(st.sampled_from(TENANTS), st.sampled_from(SESSIONS), st.sampled_from(MODELS))
STEPS = st.one_of(
    st.tuples(st.just("say"), WHO, st.integers(0, 3), st.integers(1, 600)),
    st.tuples(st.just("say"), WHO, st.integers(0, 3), st.integers(1, 600)),
    st.tuples(st.just("go on"), WHO, st.just(0), st.integers(1, 300)),
    st.tuples(st.just("read"), WHO, st.integers(0, 3), st.integers(1, 600)),
    st.tuples(st.just("fork"), WHO, st.integers(0, 2), st.integers(0, 900)),
    st.tuples(st.just("drop"), WHO, st.just(0), st.just(0)),
    st.tuples(st.just("collect"), WHO, st.just(0), st.just(0)),
)


class Quick(OsFiles):
    """No power cut is feared here."""

    def perform(self, path, operation, *args, **named):
        if operation in (operations.sync, operations.sync_folder):
            return None
        return super().perform(path, operation, *args, **named)


class World:
    """One folder with a talker for each model; what each session may hold by now."""

    def __init__(self, root: Path) -> None:
        limits = TierLimits(quota_bytes=QUOTA, tenant_bytes=QUOTA * 3 // 4)
        self.talkers = {sizes: Talker(root, limits, sizes, Quick()) for sizes in MODELS}
        self.said = {(tenant, name): [()] for tenant in TENANTS for name in SESSIONS}
        self.hits = 0

    def step(self, what: str, who: tuple, common: int, more: int) -> None:
        tenant, session_id, sizes = who
        talker = self.talkers[sizes]
        talker.clock.ms += 40_000
        with suppress(OverBudget, StaleFence, NoSession, SessionExists):
            if what == "say":
                self.say(talker, tenant, session_id, prompt(who, common, more))
            elif what == "go on":
                head = talker.tier.sessions.head(tenant, session_id)
                log = list(head.token_ids) if head else []
                self.say(talker, tenant, session_id, log + prompt(who, 0, more))
            elif what == "read":
                self.hits += talker.hit(tenant, prompt(who, common, more)) > 0
            elif what == "fork":
                self.fork(talker, tenant, session_id, SESSIONS[common], more)
            elif what == "drop":
                talker.tier.drop(tenant, session_id)
            else:
                talker.tier.collect()
        self.look(talker, tenant, session_id)

    def say(self, talker: Talker, tenant: str, session_id: str, tokens: list[int]) -> None:
        self.said[tenant, session_id].append(tuple(tokens))
        talker.say(tenant, session_id, tokens)

    def fork(self, talker: Talker, tenant: str, source: str, target: str, position: int) -> None:
        head = talker.tier.sessions.head(tenant, source)
        if head is not None:
            end = min(position, len(head.token_ids))
            logs = list(self.said[tenant, source])
            self.said[tenant, target] += [log[:end] for log in logs] + logs
            with suppress(AssertionError):  # the source may be shorter by now
                talker.tier.fork(tenant, source, target, end)

    def look(self, talker: Talker, tenant: str, session_id: str) -> None:
        """The log is the session's own, and so is every byte that is found for it."""
        head = talker.tier.sessions.head(tenant, session_id)
        if head is not None:
            assert (head.tenant, head.session_id) == (tenant, session_id)
            assert head.token_ids in self.said[tenant, session_id]
            self.hits += talker.hit(tenant, list(head.token_ids)) > 0

    def check(self) -> None:
        """In the end, nothing is over the budget, and the books are right."""
        for talker in self.talkers.values():
            for tenant, session_id in self.said:
                self.look(talker, tenant, session_id)
        talker.tier.collect()
        totals = talker.tier.ledger.totals()
        assert totals.num_bytes <= QUOTA
        manifests = sum(talker.tier.ledger.manifests_bytes(*key) for key in self.said)
        assert totals.num_bytes == talker.size() + manifests
        assert talker.tier.ledger.reserved_bytes() == 0


def prompt(who: tuple, common: int, more: int) -> list[int]:
    """Begins like everybody's, of any tenant; goes on as nobody else's."""
    tenant, session_id, _ = who
    own = 1 + TENANTS.index(tenant) * len(SESSIONS) + SESSIONS.index(session_id)
    return tokens_of(0, 200 * common) + tokens_of(own, more)


def run(world: World, steps: list[tuple], failures: list[BaseException]) -> None:
    try:
        for step in steps:
            world.step(*step)
    except BaseException as failure:
        failures.append(failure)


@settings(max_examples=25)
@given(st.lists(STEPS, min_size=1, max_size=15))
def test_one_after_the_other(steps):
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder))
        for step in steps:
            world.step(*step)
        world.check()
        for talker in world.talkers.values():
            talker.close()


@settings(max_examples=15)
@given(st.lists(st.lists(STEPS, min_size=3, max_size=10), min_size=THREADS, max_size=THREADS))
def test_all_at_once(steps_of_threads):
    with tempfile.TemporaryDirectory() as folder:
        world, failures = World(Path(folder)), []
        threads = [
            threading.Thread(target=run, args=(world, steps, failures))
            for steps in steps_of_threads
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for failure in failures:
            raise failure
        world.check()
        for talker in world.talkers.values():
            talker.close()


def test_the_world_is_busy_enough_to_say_something(tmp_path):
    """Beginnings are shared, files are evicted, and hits do happen."""
    world = World(tmp_path)
    for turn in range(30):
        who = (TENANTS[turn % 2], SESSIONS[turn % 3], MODELS[turn % 2])
        world.step("say", who, turn % 4, 150 + 17 * turn)
        world.step("fork", who, (turn + 1) % 3, 40 * turn)
        if turn % 7 == 6:
            world.step("drop", who, 0, 0)
    world.check()
    evicted = sum(one.tier.stats()["evicted_objects"] for one in world.talkers.values())
    assert world.hits > 30
    assert evicted > 10
    with closing(world.talkers[LLAMA]), closing(world.talkers[HYBRID]):
        pass


def test_the_same_tokens_of_another_tenant_are_no_hit(tmp_path):
    with closing(Talker(tmp_path)) as talker:
        talker.say("anna", "s1", tokens_of(0, 700))
        assert talker.hit("anna", tokens_of(0, 700)) == 699
        assert talker.hit("bert", tokens_of(0, 700)) == 0
        keys = talker.chain("anna").block_keys(tokens_of(0, 700))
        assert not set(keys) & set(talker.chain("bert").block_keys(tokens_of(0, 700)))


def test_another_nodes_salt_gives_other_names(tmp_path):
    """Nobody can tell from a name what was said without the node's secret."""
    with closing(Talker(tmp_path / "a")) as one, closing(Talker(tmp_path / "b")) as other:
        tokens = tokens_of(0, 256)
        assert one.chain("anna").block_keys(tokens) != other.chain("anna").block_keys(tokens)


def test_a_wrong_payload_would_be_seen(tmp_path):
    """The judge of all the above: bytes of one tenant under a name of the other's."""
    with closing(Talker(tmp_path)) as talker:
        talker.say("anna", "s1", tokens_of(0, 257))
        (key,) = talker.chain("anna").block_keys(tokens_of(0, 256))
        (of_bert,) = talker.sources("bert", tokens_of(0, 256))
        talker.tier.objects.drop("block", key)
        talker.tier.objects.write(
            type(of_bert)(key, "block", 256, of_bert.parts, LLAMA.fingerprint, "anna")
        )
        caught = False
        try:
            talker.hit("anna", tokens_of(0, 257))
        except AssertionError:
            caught = True
        assert caught
