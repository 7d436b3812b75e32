"""Any interleaving of workers, clients, RQ's commands and crashes: each request ends exactly once.

The machine keeps what each worker believes it holds, also when that is no longer so: a worker that
was taken over goes on writing, and must change nothing.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from rq.job import Job

from tests.workers.queue.conftest import Node
from workers.queue.serializer import MsgpackSerializer
from workers.wire import TERMINAL, EndEvent, TokenEvent, WebhookTarget
from workers.worker_store import Said

WORKERS = st.sampled_from(["w1", "w2"])
IDS = st.sampled_from([f"r{i}" for i in range(5)])
DONE = EndEvent(status="finished", finish_reason="length")
HOOK = WebhookTarget(url="http://127.0.0.1:1/")


def event(index):
    return TokenEvent(index=index, token_id=index, text=f" {index}", digest=f"{index:x}")


class Queue(RuleBasedStateMachine):
    """Set url before running."""

    url = ""

    @initialize()
    def begin(self):
        from redis import Redis

        Redis.from_url(self.url).flushall()
        self.node = Node(self.url, max_attempts=3)
        self.store = self.node.store
        self.routed, self.ended = set(), {}
        self.believed = {"w1": {}, "w2": {}}  # request id: (Claimed, tokens journalled)

    # --- the client and the router ---

    @rule(request_id=IDS, deadline=st.sampled_from([None, None, 1]))
    def route(self, request_id, deadline):
        reply = self.node.route(request_id, webhook=HOOK, deadline_ms=deadline)
        assert reply == ("duplicate" if request_id in self.routed else "routed")
        self.routed.add(request_id)

    @rule(request_id=IDS)
    def cancel(self, request_id):
        reply = self.store.cancel(request_id)
        assert (reply == "unknown") == (request_id not in self.routed)
        assert (reply == "ended") == (request_id in self.ended)

    # --- the workers ---

    @rule(worker=WORKERS, room=st.integers(1, 3))
    def claim(self, worker, room):
        idle = not self.believed[worker]
        for item in self.store.claim("cpu", worker, room, idle=idle):
            assert item.request.id == item.job_id
            num_tokens = len(self.store.tokens(item.job_id))
            self.believed[worker][item.job_id] = (item, num_tokens)

    @rule(worker=WORKERS, count=st.integers(1, 2))
    def journal(self, worker, count):
        mine = self.believed[worker]
        told = [(item, [event(done + i) for i in range(count)]) for item, done in mine.values()]
        lost = self.store.journal("cpu", told)
        for item, events in told:
            mine[item.job_id] = (item, events[-1].index + 1)
        for request_id in lost:
            del mine[request_id]

    @precondition(lambda self: any(self.believed.values()))
    @rule(data=st.data(), worker=WORKERS, again=st.booleans())
    def finish(self, data, worker, again):
        mine = self.believed[worker]
        if not mine:
            return
        item, done = mine.pop(data.draw(st.sampled_from(sorted(mine))))
        text = "".join(event(i).text for i in range(done))
        kept = self.store.finish("cpu", worker, item, DONE, text)
        assert not again or self.store.finish("cpu", worker, item, DONE, "other") == kept

    @rule(worker=WORKERS, count=st.integers(1, 2), again=st.booleans())
    def tell(self, worker, count, again):
        """Tokens and ends of all that it has, in one call: of each all of it or nothing."""
        mine, self.believed[worker] = self.believed[worker], {}
        told = [(item, [event(i) for i in range(done + count)]) for item, done in mine.values()]
        said = [
            Said(item, events[-count:], DONE, "".join(one.text for one in events))
            for item, events in told
        ]
        kept = self.store.tell("cpu", worker, said)
        assert not again or self.store.tell("cpu", worker, said) == kept

    @rule(worker=WORKERS)
    def beat(self, worker):
        items = [item for item, _ in self.believed[worker].values()]
        for request_id in self.store.beat("cpu", worker, items).lost:
            del self.believed[worker][request_id]

    @rule(worker=WORKERS)
    def stop(self, worker):
        self.store.hand_back("cpu", [item for item, _ in self.believed[worker].values()])
        self.believed[worker] = {}

    @rule(worker=WORKERS)
    def crash(self, worker):
        self.believed[worker] = {}

    @rule(worker=WORKERS)
    def recover(self, worker):
        """Of a dead worker, or, wrongly, of one that lives: it loses its leases then."""
        self.store.recover("cpu", worker)

    @rule(late=st.booleans())
    def reap(self, late):
        if late:
            self.node.expire_leases()
        self.store.reap("cpu")

    # --- what others do to the queue ---

    @rule(request_id=IDS)
    def cancel_by_rq(self, request_id):
        record = self.node.redis.hget(self.node.keys.rq_job(request_id), "status")
        if record in (b"queued", b"started"):
            Job.fetch(request_id, connection=self.node.redis, serializer=MsgpackSerializer).cancel()

    @rule()
    def pop_by_a_stranger(self):
        self.node.redis.lpop(self.node.keys.queue("cpu"))

    @rule(request_id=IDS)
    def push_by_a_stranger(self, request_id):
        self.node.redis.rpush(self.node.keys.queue("cpu"), request_id)

    @rule(force=st.booleans())
    def reconcile(self, force):
        self.store.reconcile(force=force)

    # --- what holds always ---

    @invariant()
    def an_end_is_for_ever_and_posted_once(self):
        if not hasattr(self, "routed"):
            return
        for request_id in self.routed:
            job = self.store.job(request_id)
            if request_id in self.ended:
                assert job == self.ended[request_id]
            elif job["status"] in TERMINAL:
                self.node.check_ended_journal(request_id)
                self.ended[request_id] = job
        assert sorted(self.node.queue("webhooks")) == sorted(f"wh-{i}-1" for i in self.ended)

    @invariant()
    def one_execution_at_most_holds_a_request(self):
        if hasattr(self, "node"):
            ids = [member.split(":")[0] for member in self.node.leases()]
            assert len(ids) == len(set(ids))

    def teardown(self):
        """Whatever happened: one sound worker brings everything to its end."""
        if not hasattr(self, "routed"):
            return
        for worker in self.believed:
            self.store.recover("cpu", worker)
        self.node.expire_leases()
        self.store.reap("cpu")
        self.store.reconcile(force=True)
        while items := self.store.claim("cpu", "last", 8):
            for item in items:
                text = "".join(told.text for _, told in self.store.tokens(item.job_id))
                assert self.store.finish("cpu", "last", item, DONE, text)
        self.an_end_is_for_ever_and_posted_once()
        assert set(self.ended) == self.routed
        for request_id in self.routed:
            self.node.check_ended(request_id)
        assert self.node.redis.zcard(self.node.keys.active) == 0


def test_every_request_ends_exactly_once(redis_url):
    Queue.url = redis_url
    run = settings(max_examples=50, stateful_step_count=40, deadline=None)
    run_state_machine_as_test(Queue, settings=run)
