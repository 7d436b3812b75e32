"""What a pool's session threads talk to, without an engine and without a disk."""

import threading

from kv_tier.manifest import Manifest
from kv_tier.sessions import StaleFence
from workers.engine.kept import Kept
from workers.queue.pulse import Pulse
from workers.session.compose import Turn
from workers.session.turn import Identity, OpenTurn
from workers.wire import Keys, Request, SamplingParams
from workers.worker_store import Claimed

IDENTITY = Identity("m", "ab" * 16, "3", b"f" * 32)


def request_of(request_id="r1", token_ids=(1, 2, 3), **more):
    params = SamplingParams(max_tokens=4)
    more = {"session_id": "s", "composed": True, **more}
    return Request(
        id=request_id, model="m", token_ids=tuple(token_ids), arrival_ms=1, params=params, **more
    )


def item_of(request_id="r1", **more):
    return Claimed(request_id, f"e-{request_id}", 1, request_of(request_id, **more), 5)


def kept_of(num_kv=600, request_id="r1", *, state=False, num_prompt=3):
    num_full, rest = divmod(num_kv, 256)
    return Kept(
        request=request_of(request_id),
        token_ids=list(range(num_kv + 1)),
        num_prompt=num_prompt,
        num_kv=num_kv,
        start=b"0" * 32,
        blocks=[(bytes([n]) * 32, n) for n in range(num_full)],
        tail=(b"t" * 32, 99) if rest else None,
        state=(b"s" * 32, 0) if state else None,
    )


def manifest_of(generation=1, token_ids=(1, 2, 3), **more):
    return Manifest(
        tenant="default",
        session_id="s",
        generation=generation,
        fence=1,
        fingerprint=IDENTITY.fingerprint,
        model="m",
        weights_digest=IDENTITY.weights_digest,
        arithmetic_version="3",
        created_ms=1,
        used_ms=1,
        token_ids=tuple(token_ids),
        **more,
    )


def turn_of(head=None, fence=5):
    return OpenTurn("default", "s", "s", fence, head, Turn([1, 2, 3], (), 0, None))


class FakeSessions:
    """Of one session; take and commit as the real ones."""

    def __init__(self):
        self.fence, self.now = 0, None
        self.take_fails = self.head_fails = None
        self.generation_damaged = 0

    def take(self, tenant, session_id, fence):
        if self.take_fails:
            raise self.take_fails
        self.fence = max(fence, self.fence + 1)
        return self.fence

    def damaged(self, tenant, session_id):
        return self.generation_damaged

    def head(self, tenant, session_id):
        if self.head_fails:
            raise self.head_fails
        return self.now


class FakeTier:
    """Remembers; fails with what it is told to; waits while the gate is shut."""

    def __init__(self):
        self.sessions = FakeSessions()
        self.fails, self.commit_fails = None, None
        self.committed, self.collected, self.discarded, self.dropped = [], 0, set(), []
        self.gate = threading.Event()
        self.gate.set()

    def commit(self, manifest):
        if self.commit_fails:
            raise self.commit_fails
        if manifest.fence < self.sessions.fence:
            raise StaleFence(manifest, "a higher fence")
        self.committed.append(manifest)
        self.sessions.now = manifest

    def drop(self, tenant, session_id):
        self.dropped.append(session_id)
        self.sessions.now = None
        self.sessions.fence += 1

    def discard(self, objects):
        self.discarded |= objects

    def collect(self, forget):
        self.collected += 1
        forget("acme", "old")


class FakeText:
    end_ids = frozenset({7})


class FakeBacking:
    """workers.session.backing.Backing over a FakeTier."""

    has_state = True
    state_slots = 8
    identity = IDENTITY
    text = FakeText()
    remote = None

    def __init__(self):
        self.tier, self.pulse, self.puts = FakeTier(), Pulse(), []
        self.brought, self.forgotten = [], []

    def moves(self):
        self.pulse.beside += 1

    def now_ms(self):
        return 1000

    def put(self, kept, *, state):
        self.tier.gate.wait(30)
        if self.tier.fails:
            raise self.tier.fails
        self.puts.append((kept.request.id, kept.num_kv, state))
        return 10

    def bring(self, manifest, end):
        self.brought.append((manifest.generation, end))

    def forget(self, tenant, session_id):
        self.forgotten.append(session_id)

    def ask_store(self, call, seconds):
        return None, ""

    def fetch(self, request, journal, head):
        return None


class FakeStore:
    """The session's hash, and the lease."""

    def __init__(self):
        self.hash, self.has_lease, self.composed = {}, True, []
        self.forgotten, self.cached, self.logs = [], {}, []
        self.keys = Keys("lockstep")

    def session(self, full):
        return dict(self.hash)

    def session_note(self, full, *, fence=None, log=None, **fields):
        if fence is not None:
            if fence < self.hash.get("fence", 0):
                return False
            self.hash["fence"] = fence
        self.hash.update(fields)
        self.logs += [] if log is None else [log]
        return True

    def note_cached(self, request_id, num_tokens):
        self.cached[request_id] = num_tokens

    def session_forget(self, full, *, fence=None):
        self.forgotten.append(full)
        return True

    def compose(self, item, request, *, forked_at=None):
        self.composed.append((request, forked_at))
        return self.has_lease

    def tokens(self, request_id):
        return []

    def loads(self):
        return []
