"""What an answer must look like holds on both processors, in the same bits, and after a take-over.

The models are random: whatever they say is the grammar's doing.
"""

import json

import msgspec
import pytest
from jsonschema import Draft202012Validator

from kernels.cuda.emulate.device import open_emulated
from tests.workers.engine.test_prefix_models import Machine, request_of
from tests.workers.text.test_mask import SCHEMA, WEATHER
from workers.text.grammar import Wanted, grammar_of
from workers.wire import EndEvent

JSON = grammar_of(Wanted("hermes", schema=SCHEMA))
CALL = grammar_of(Wanted("hermes", (WEATHER,), "required", most=1))


@pytest.fixture(scope="module")
def machine(tiny_home) -> Machine:
    return Machine(tiny_home / "models" / "tiny_llama", "tiny_llama")


def constrained(machine, grammar, **wanted):
    request = request_of(machine.ids[:20], **{"max_tokens": 200, **wanted})
    return msgspec.structs.replace(request, grammar=grammar)


def text_of(events) -> str:
    return "".join(event.text for event in events)


@pytest.mark.parametrize("temperature", [0, 0.7, 2])
def test_an_answer_satisfies_its_schema(machine, temperature):
    events = machine.judged(constrained(machine, JSON, temperature=temperature))
    assert events[-1].finish_reason == "stop"
    assert Draft202012Validator(SCHEMA).is_valid(json.loads(text_of(events)))


@pytest.mark.parametrize(("grammar", "temperature"), [(JSON, 0), (CALL, 1)], ids=["json", "call"])
def test_both_processors_and_every_take_over_give_the_same_bits(machine, grammar, temperature):
    request = constrained(machine, grammar, temperature=temperature, max_tokens=24)
    whole = machine.judged(request)
    gpu = machine.engine(device=open_emulated(), is_sharing=False)
    assert whole == machine.say(gpu, request)
    tokens = [event for event in whole if not isinstance(event, EndEvent)]
    for boundary in (1, len(tokens) - 1):
        again = machine.engine(is_sharing=False)
        journal = tokens[:boundary]
        assert whole == journal + machine.say(again, request, journal)


def test_beside_others_each_keeps_to_its_own(machine):
    free = request_of(machine.ids[:20], "free", max_tokens=12)
    engine = machine.engine(is_sharing=False)
    alone = machine.say(machine.engine(is_sharing=False), free)
    engine.add(constrained(machine, JSON))
    engine.add(free)
    said = {"r": [], "free": []}
    while engine.has_work():
        for output in engine.step():
            said[output.request_id].append(output.event)
    assert Draft202012Validator(SCHEMA).is_valid(json.loads(text_of(said["r"])))
    assert [e.token_id for e in alone[:-1]] == [e.token_id for e in said["free"][:-1]]
    assert alone[-1].digest == said["free"][-1].digest


def test_the_digest_is_that_of_the_raw_logits(machine):
    """The first token's logits are those of a free answer, whichever token is allowed."""
    free = machine.judged(request_of(machine.ids[:20], logprobs=20, temperature=0))
    held = machine.judged(constrained(machine, JSON, logprobs=20, temperature=0))
    assert free[0].logprobs[1:] == held[0].logprobs[1:]


def test_a_grammar_that_does_not_compile_ends_its_request_alone(machine):
    events = machine.judged(constrained(machine, "start: ("))
    assert [(e.status, e.code) for e in events] == [("failed", "grammar_error")]
    assert "grammar" in events[0].error


def test_a_bias_bans_a_token_or_makes_it_certain(machine):
    free = machine.judged(request_of(machine.ids[:20], temperature=0))
    first = free[0].token_id
    banned = machine.judged(
        request_of(machine.ids[:20], temperature=0, logit_bias=((first, -100.0),))
    )
    assert banned[0].token_id == free[0].logprobs[2][0]
    forced = machine.judged(request_of(machine.ids[:20], max_tokens=3, logit_bias=((7, 100.0),)))
    assert [event.token_id for event in forced[:-1]] == [7, 7, 7]


def test_choices_draw_by_numbers_of_their_own(machine):
    said = [
        [e.token_id for e in machine.judged(request_of(machine.ids[:20], choice=choice))[:-1]]
        for choice in (0, 1, 0)
    ]
    assert said[0] == said[2] != said[1]
