"""How much may wait: as much as keeps the promise, and when there is room again."""

from hypothesis import given, settings
from hypothesis import strategies as st

from router.placement import place
from router.pools import PoolView, Wanted
from router.pressure import is_too_much, pressure_of
from workers.cost import CostModel
from workers.sla import SlaClass, SlaTable

TABLE = SlaTable((SlaClass(name="fast", ttft_ms=2000), SlaClass(name="free", handicap_ms=5000)))
COST = CostModel(fixed_ms=10, decode_ms=1, prefill_ms=1)
FULL = PoolView(
    name="cpu",
    model="m",
    cost=COST,
    places=2,
    running=2,
    decoding=2,
    context_tokens=400,
    by_class={"fast": 2},
    total_blocks=64,
    sequence_blocks=64,
    free_blocks=60,
)


def wanted(sla="fast"):
    return Wanted("", sla, 0, 100, 20)


def test_as_many_may_wait_as_are_served_within_the_promise():
    none = pressure_of(wanted(), [FULL], TABLE, 0, {"fast": 0, "free": 0}, 1000)
    assert (none.retry_ms, none.waiting < none.most) == (0.0, True)
    many = pressure_of(wanted(), [FULL], TABLE, 0, {"fast": 500, "free": 0}, 1000)
    assert many.waiting > many.most > 0
    for number, refused in ((many.most - 1, False), (many.most, True)):
        behind = {"fast": number, "free": 0}
        assert is_too_much(place(wanted(), None, [FULL], TABLE, 0, backlog=behind)) is refused


def test_a_class_without_a_promise_is_bounded_by_its_length_alone():
    waiting = {"fast": 0, "free": 1000}
    told = pressure_of(wanted("free"), [FULL], TABLE, 0, waiting, 1000)
    assert (told.waiting, told.most) == (1000, 1000)
    assert 0 < told.retry_ms < told.wait_ms


def test_without_predictions_the_length_decides_and_nothing_is_told_of_time():
    unknown = PoolView(name="cpu", model="m", places=2)
    told = pressure_of(wanted(), [unknown], TABLE, 0, {"fast": 7, "free": 0}, 7)
    assert (told.waiting, told.most, told.wait_ms, told.retry_ms) == (7, 7, None, 0.0)


def test_without_a_pool_only_the_length_decides():
    told = pressure_of(wanted(), [], TABLE, 0, {"fast": 3, "free": 0}, 7)
    assert (told.waiting, told.most) == (3, 7)


@settings(max_examples=60)
@given(count=st.integers(0, 2000), most=st.integers(1, 1000), sla=st.sampled_from(TABLE.names))
def test_it_is_told_to_wait_exactly_when_it_is_refused(count, most, sla):
    waiting = {"fast": 0, "free": 0} | {sla: count}
    told = pressure_of(wanted(sla), [FULL], TABLE, 0, waiting, most)
    plan = place(wanted(sla), None, [FULL], TABLE, 0, backlog=waiting)
    assert (told.waiting >= told.most) is (count >= most or is_too_much(plan))
    assert (told.retry_ms > 0) is (told.waiting >= told.most)
