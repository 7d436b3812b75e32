"""A request moves between the CPU and a GPU at every token boundary, and nobody can tell.

The GPU is emulated: its memory is apart, so that what is not copied is not there.
"""

from itertools import islice

import pytest

from kernels.cuda.emulate.device import open_emulated
from tests.workers.engine.prefixes import Files, events_of
from tests.workers.engine.test_prefix_models import Machine, computed_by, request_of
from tests.workers.engine.test_reuse import uncached


@pytest.fixture(scope="module", params=["tiny_llama", "tiny_qwen35"])
def machine(request, tiny_home) -> Machine:
    return Machine(tiny_home / "models" / request.param, request.param)


@pytest.fixture
def files(tmp_path) -> Files:
    return Files(tmp_path)


def begin(engine, files, request, journal, num_more):
    """Go on from the journal for some tokens, then leave; all events so far, and what is kept."""
    token_ids = [*request.token_ids, *(event.token_id for event in journal)]
    prefix = files.prefix(engine, request, token_ids, [len(token_ids) - 1])
    engine.add(request, journal, prefix=prefix)
    events = [uncached(output.event) for output in islice(events_of(engine), num_more)]
    kept = engine.suspend("r")
    files.write(engine, kept)
    engine.release(kept)
    return [*journal, *events], kept


@pytest.mark.parametrize(("length", "first"), [(30, 0), (253, 1)])
def test_there_and_back_at_every_token_boundary(machine, files, length, first):
    """first: the boundary; before any token the GPU computes the prompt itself"""
    request = request_of(machine.ids[:length])
    whole = machine.judged(request)
    for boundary in range(first, len(whole) - 2):
        begun, kept = begin(machine.engine(step_tokens=200), files, request, [], boundary)
        gpu = machine.engine(device=open_emulated())
        begun, kept = begin(gpu, files, request, begun, 1)
        assert computed_by(gpu) == (0 if boundary else length)
        cpu = machine.engine()
        prefix = files.prefix(cpu, request, kept.token_ids, [kept.num_kv])
        assert begun + machine.say(cpu, request, begun, prefix) == whole
        assert computed_by(cpu) == 0
