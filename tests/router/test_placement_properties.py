"""What holds for every plan, whatever the node is like: hypothesis looks for a counterexample."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace as with_fields

from router.burden import keeps_pace
from router.forecast import Forecast
from router.placement import place
from router.pools import BLOCK_TOKENS, PoolView
from router.replan import LOST_AT_ONCE, QUEUED_AT_ONCE, RUNNING_AT_ONCE, Job, replan
from router.ways import strain
from tests.router.node_pictures import CPU_COST, GPU_COST, NOW_MS, OUTPUT, TABLE, wanted

classes = st.sampled_from(TABLE.names)
numbers = st.integers(0, 1 << 17)


@st.composite
def requests(draw, name="a"):
    prompt = draw(st.integers(1, 300_000))
    return replace(
        wanted(name, draw(classes), prompt, draw(st.integers(1, 8192))),
        arrival_ms=NOW_MS - draw(st.integers(0, 10**8)),
        kept_tokens=draw(st.integers(0, prompt - 1)),
        deadline_ms=draw(st.none() | st.integers(NOW_MS + 1, NOW_MS + 10**8)),
    )


@st.composite
def pools(draw, name, cost):
    """Any picture that a report may give, also ones that contradict themselves."""
    total = draw(st.integers(1, 2000))
    factor = draw(st.sampled_from([0.1, 1.0, 10.0]))
    wrong = with_fields(cost, fixed_ms=cost.fixed_ms * factor, prefill_ms=cost.prefill_ms * factor)
    return PoolView(
        name,
        state=draw(st.sampled_from(["ready", "ready", "ready", "loading", "not reporting"])),
        cost=draw(st.sampled_from([wrong, wrong, wrong, None])),
        places=draw(st.integers(1, 64)),
        running=draw(st.integers(0, 96)),
        free_blocks=draw(st.integers(0, total)),
        total_blocks=total,
        sequence_blocks=total,
        waiting_blocks=draw(st.integers(0, 100)),
        decoding=draw(st.integers(0, 64)),
        context_tokens=draw(numbers),
        prefill_tokens=draw(numbers),
        output_tokens=draw(st.sampled_from([OUTPUT, {}])),
        by_class=draw(st.dictionaries(classes, st.integers(0, 64))),
        queue=tuple(draw(st.lists(requests("q"), max_size=4))),
    )


nodes = st.tuples(pools("gpu", GPU_COST), pools("cpu", CPU_COST))
homes = st.sampled_from([None, "gpu", "cpu"])


def holds(request, pool):
    """Also of one that is away, and was ready lately."""
    return request.num_tokens <= pool.sequence_blocks * BLOCK_TOKENS


def fits(request, pool):
    return pool.is_ready and holds(request, pool)


@given(requests(), homes, nodes)
def test_there_is_a_plan_for_what_fits_and_never_a_pool_that_cannot_hold_it(request, home, node):
    plan = place(request, home, node, TABLE, NOW_MS)
    by_name = {pool.name: pool for pool in node}
    able = [pool for pool in node if fits(request, pool)]
    for name in filter(None, (plan.pool, plan.then)):
        assert by_name[name] in able or (not able and holds(request, by_name[name]))
    if plan.kind == "refuse" and request.deadline_ms is None:
        assert not any(holds(request, pool) for pool in node)
    if not any(pool.is_ready for pool in node):
        assert plan.kind == "wait"


@given(requests(), homes, nodes)
def test_an_idle_node_lets_nothing_wait(request, home, node):
    idle = tuple(
        replace(
            pool,
            state="ready",
            running=0,
            decoding=0,
            context_tokens=0,
            prefill_tokens=0,
            waiting_blocks=0,
            free_blocks=pool.total_blocks,
            by_class={},
            queue=(),
        )
        for pool in node
    )
    assert place(request, home, idle, TABLE, NOW_MS).kind != "wait"


@given(requests(), homes, nodes)
def test_a_plan_is_a_function_of_what_is_seen(request, home, node):
    assert place(request, home, node, TABLE, NOW_MS) == place(request, home, node, TABLE, NOW_MS)


@given(requests(), homes, nodes)
def test_the_reason_is_a_sentence_that_names_the_pools(request, home, node):
    plan = place(request, home, node, TABLE, NOW_MS)
    assert plan.reason
    for name in filter(None, (plan.pool, plan.then)):
        assert name in plan.reason


def strain_of(request, plan):
    """The largest part of a promise that it takes; realtime promises nothing about its end."""
    return strain(request, Forecast(plan.wait_ms, plan.ttft_ms, plan.tpot_ms, 0.0), TABLE, NOW_MS)


def is_twice_as_good(request, plan, other):
    return 2 * strain_of(request, plan) <= strain_of(request, other)


@given(requests(), homes, nodes)
def test_where_a_less_urgent_request_has_room_a_more_urgent_one_has_it_too(request, home, node):
    """Or it waits: its promise is kept so, or it would not be twice as well off there, or it would
    break the pace of those that run there.
    """
    patient = replace(request, sla="batch", deadline_ms=None)
    taken = place(patient, home, node, TABLE, NOW_MS)
    if taken.kind in ("wait", "refuse"):
        return
    urgent = replace(patient, sla="realtime")
    plan = place(urgent, home, node, TABLE, NOW_MS)
    assert plan.kind != "refuse"
    if plan.kind == "wait":
        there = next(pool for pool in node if pool.name == (taken.then or taken.pool))
        elsewhere = place(urgent, home, [there], TABLE, NOW_MS)
        kept, joins = strain_of(urgent, plan) <= 1, keeps_pace(urgent, there, TABLE)
        assert kept or not joins or not is_twice_as_good(urgent, elsewhere, plan)


@settings(max_examples=60)
@given(nodes, st.lists(requests(), max_size=12), st.data())
def test_moves_are_few_and_go_to_pools_that_hold_what_they_get(node, wanteds, data):
    jobs = [
        Job(
            replace(one, request_id=f"r{n}", output_tokens=data.draw(st.integers(0, 50))),
            data.draw(st.sampled_from(["gpu", "cpu"])),
            data.draw(st.booleans()),
        )
        for n, one in enumerate(wanteds)
    ]
    moves = replan(node, jobs, TABLE, NOW_MS)
    by_name, by_id = {p.name: p for p in node}, {job.wanted.request_id: job for job in jobs}
    assert len({move.request_id for move in moves}) == len(moves)
    assert len(moves) <= max(LOST_AT_ONCE, QUEUED_AT_ONCE + RUNNING_AT_ONCE)
    for move in moves:
        job = by_id[move.request_id]
        assert move.to_pool != job.pool and fits(job.wanted, by_name[move.to_pool])
        assert move.to_pool in move.reason
    assert moves == replan(node, jobs, TABLE, NOW_MS)
