"""The HTTP door refuses what would wait too long, and Retry-After is when it would be taken."""

import pytest

from tests.ingest.conftest import running
from workers.cost import CostModel
from workers.promises import press
from workers.wire import PoolLoad, Pressure
from workers.worker_store import WorkerStore

SLOW = CostModel(fixed_ms=100, decode_ms=10, prefill_ms=10)
QUICK = CostModel(fixed_ms=5, decode_ms=1, prefill_ms=1)
BODY = {"prompt": "The capital of France is", "max_tokens": 16}


def ask(door, sla="realtime", **fields):
    return door.http.post("/v1/jobs", json={**BODY, "sla": sla, **fields})


def error_of(response):
    return response.json()["error"]


def report(door, **fields):
    told = {"pool": "cpu", "worker": "w", "state": "ready", "model": door.desk.settings.model}
    told |= {"capacity": 1, "total_blocks": 64, "free_blocks": 60, "cost": SLOW} | fields
    store = WorkerStore.of(door.desk.settings)
    store.report(PoolLoad(**told))
    store.redis.persist(store.keys.pool(told["pool"], "w"))  # it lives however long a test takes


def busy(door):
    """A pool with one place, which is taken: each that waits takes about a tenth of a second."""
    some = {"running": 1, "decoding": 1, "context_tokens": 50, "by_class": {"realtime": 1}}
    report(door, cost=QUICK, **some)


def test_it_takes_until_the_promise_would_be_broken_and_tells_when_it_would_take_more(door):
    busy(door)
    answers = [ask(door) for _ in range(30)]
    codes = [answer.status_code for answer in answers]
    assert codes[0] == 202 and codes[-1] == 429
    assert codes == sorted(codes)  # what is taken counts at once, not at the next look
    refused = next(answer for answer in answers if answer.status_code == 429)
    assert error_of(refused)["code"] == "overloaded"
    retry_ms = int(refused.headers["retry-after-ms"])
    assert int(refused.headers["retry-after"]) == -(-retry_ms // 1000) >= 1
    assert "later than its class promises; it would be taken in" in error_of(refused)["message"]


def test_a_slow_nodes_door_takes_what_a_quicker_node_would_keep(settings):
    with running(settings.model_copy(update={"node": "a"})) as door:
        some = {"running": 1, "decoding": 1, "context_tokens": 50, "by_class": {"realtime": 1}}
        report(door, pool="cpu@a", cost=QUICK, **some)
        while ask(door).status_code == 202:
            pass
        store = door.desk.store
        press(store, {"realtime": Pressure(waiting=3, most=4)})
        assert ask(door).status_code == 202
        press(store, {"realtime": Pressure(waiting=4, most=4)})
        assert error_of(ask(door))["code"] == "overloaded"


def test_when_what_was_ahead_is_gone_it_takes_again(door, wait_until):
    busy(door)
    while ask(door).status_code == 202:
        pass
    door.desk.store.redis.delete(door.desk.keys.requests("realtime"))
    report(door, running=0)
    wait_until(lambda: ask(door).status_code == 202)


def test_a_class_with_more_time_is_still_taken(door):
    busy(door)
    while ask(door).status_code == 202:
        pass
    assert ask(door, "batch").status_code == 202


def test_an_id_that_was_taken_before_is_answered_also_when_the_door_is_shut(door):
    busy(door)
    assert ask(door, id="mine").status_code == 202
    while ask(door).status_code == 202:
        pass
    assert ask(door, id="mine").status_code == 200


def test_a_deadline_that_an_idle_node_could_not_meet_is_refused_for_good(door):
    report(door)
    response = ask(door, deadline_ms=20)
    assert (response.status_code, error_of(response)["param"]) == (400, "deadline_ms")
    assert "retry-after" not in response.headers


def test_a_class_has_its_own_bound(settings):
    bounded = settings.model_copy(update={"sla": {"batch": {"max_queue": 2}}})
    with running(bounded) as door:
        assert [ask(door, "batch").status_code for _ in range(3)] == [202, 202, 429]
        assert ask(door, "standard").status_code == 202


@pytest.mark.parametrize("limit", ["requests", "tokens"])
def test_a_tenant_that_asks_for_too_much_is_told_when_to_ask_again(settings, limit):
    per_min = {"requests": 2, "tokens": 60}[limit]  # a request may need some 40 tokens
    with running(settings.model_copy(update={f"tenant_{limit}_per_min": per_min})) as door:
        answers = [ask(door) for _ in range(4)]
        refused = [answer for answer in answers if answer.status_code == 429]
        assert refused and error_of(refused[0])["code"] == "rate_limited"
        assert 1 <= int(refused[0].headers["retry-after"]) <= 60


def test_refusals_are_counted_and_are_promises_not_kept(door):
    busy(door)
    while ask(door).status_code == 202:
        pass
    page = door.http.get("/metrics").text
    assert 'lockstep_requests_refused_total{code="overloaded"} 1.0' in page
    assert 'lockstep_promises_total{outcome="overloaded",sla="realtime"} 1.0' in page
    assert 'lockstep_attainment{sla="realtime"} 0.0' in page
    assert 'lockstep_attainment_target{sla="realtime"} 0.99' in page
    assert 'lockstep_cost_error{pool="cpu",worker="w"} 0.0' in page
