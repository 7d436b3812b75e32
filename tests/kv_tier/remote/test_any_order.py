"""Pushes, pulls, sweeps and deletions of several nodes in any order, with a store that fails."""

from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kv_tier.remote.bucket import Bucket, StoreError
from kv_tier.remote.places import version_of
from kv_tier.remote.pull import newest, pull
from kv_tier.remote.push import Superseded, push
from kv_tier.remote.sweep import forget, sweep
from tests.kv_tier.remote.homes import SIZES, TENANT, Home, Shaky

HOMES = st.integers(0, 1)
SESSIONS = st.sampled_from(["s", "t"])
SIZES_OF_LOGS = (2, 200, 256, 257, 600)


class Fleet(RuleBasedStateMachine):
    """Of each session: what was said last (the truth), what the store was given whole."""

    def __init__(self):
        super().__init__()
        self.folder = TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
        root = Path(self.folder.name)
        self.bucket = Shaky(Bucket(f"file://{root}/shared"))
        self.homes = [Home(root / name, self.bucket) for name in ("one", "other")]
        self.fence = 0
        self.logs = {}  # version of each session -> its token ids
        self.pushed = {}  # session -> the latest version that a push returned for

    def teardown(self):
        for home in self.homes:
            home.close()
        self.folder.cleanup()

    @rule(home=HOMES, session=SESSIONS, size=st.sampled_from(SIZES_OF_LOGS), salt=st.booleans())
    def say(self, home, session, size, salt):
        """The next owner of a session: its fence is higher than all before."""
        self.fence += 1
        log = tuple(range(1000 * salt, 1000 * salt + size))
        said = self.homes[home].say(session, log, fence=self.fence)
        self.fence = max(self.fence, said.fence)
        self.logs[session, version_of(said)] = log

    @rule(home=HOMES, session=SESSIONS, trusts=st.booleans())
    def push(self, home, session, trusts):
        home = self.homes[home]
        said = home.tier.sessions.head(TENANT, session)
        if said is None:
            return
        with suppress(StoreError, Superseded):
            push(home.remote, TENANT, session, trusts=trusts)
            self.pushed[session] = max(self.pushed.get(session, (0, 0)), version_of(said))

    @rule(home=HOMES, session=SESSIONS)
    def pull(self, home, session):
        home = self.homes[home]
        try:
            found = newest(home.remote, TENANT, session)
        except StoreError:
            return
        if found is None:
            assert session not in self.pushed or self.bucket.shown is not None
            return
        assert found.token_ids == self.logs[session, version_of(found)]
        if self.bucket.shown is None:
            assert version_of(found) >= self.pushed.get(session, (0, 0))
        with suppress(StoreError):
            pull(home.remote, found, SIZES)
        home.holds(found)  # whatever came is right

    @rule(session=SESSIONS)
    def delete(self, session):
        with suppress(StoreError):
            forget(self.homes[0].remote, TENANT, session)
            if self.bucket.shown is None:
                self.pushed.pop(session, None)

    @rule(home=HOMES, hours=st.sampled_from([0, 20, 60]))
    def sweep(self, home, hours):
        home = self.homes[home]
        for one in self.homes:
            one.now_ms += hours * 3_600_000
        with suppress(StoreError):
            sweep(home.remote)

    @rule(fails=st.sets(st.sampled_from(["put", "get", "head", "list", "delete"]), max_size=2))
    def trouble(self, fails):
        self.bucket.fails = fails

    @rule()
    def lag(self):
        if not self.bucket.fails:
            self.bucket.lag()

    @rule()
    def mend(self):
        self.bucket.fails, self.bucket.shown = set(), None

    @invariant()
    def all_that_is_there_is_right(self):
        """Of every version that a list shows, each object is whole and is what was computed."""
        shown, fails = self.bucket.shown, self.bucket.fails
        self.bucket.shown, self.bucket.fails = None, set()
        for session in ("s", "t"):
            found = newest(self.homes[0].remote, TENANT, session)
            if found is not None:
                assert found.token_ids == self.logs[session, version_of(found)]
        self.bucket.shown, self.bucket.fails = shown, fails


Fleet.TestCase.settings = settings(
    max_examples=25,
    stateful_step_count=15,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestAnyOrder = Fleet.TestCase
