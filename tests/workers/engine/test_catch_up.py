"""Prompts that begin alike and come at once: what one has computed the others need not."""

import pytest

from tests.workers.engine.fake import FakeClock, make_request
from tests.workers.engine.prefixes import (
    Computed,
    PagedModel,
    PagedRecurrentModel,
    prompt_of,
    sharing_engine,
)
from tests.workers.engine.test_law_one import judged
from tests.workers.engine.test_reuse import uncached
from workers.wire import EndEvent

SYSTEM = prompt_of(600, 3)
STEP = 128


@pytest.mark.parametrize("num_blocks", [16, 12])
@pytest.mark.parametrize("model", [PagedModel, PagedRecurrentModel])
def test_equal_beginnings_at_once_are_computed_about_once(model, num_blocks):
    engine = sharing_engine(model(FakeClock()), max_step_tokens=STEP, num_blocks=num_blocks)
    requests = [make_request(f"r{n}", [*SYSTEM, 20 + n, 30 + n], max_tokens=4) for n in range(4)]
    computed, said = Computed(engine), {request.id: [] for request in requests}
    for request in requests:
        engine.add(request)
    while engine.has_work():
        for output in engine.step():
            said[output.request_id].append(output.event)
        engine.check()
    own = 4 * (len(SYSTEM) % 256 + 2 + 4)
    assert computed.tokens() <= len(SYSTEM) // 256 * 256 + own + 4 * STEP
    for request in requests:
        assert [uncached(event) for event in said[request.id]] == judged(request)
        assert isinstance(said[request.id][-1], EndEvent)
    cached = sorted(events[-1].usage.cached_tokens for events in said.values())
    assert cached[0] == 0 and cached[1] >= 512 - STEP
    assert engine.load().kv["reused_tokens"] == sum(cached)
