"""A class changes while a request waits or is in mid-generation: the answer is the same bits."""

import json

import httpx
import pytest

from tests.node.running_node import wait_for

LONG = {"prompt": "Once upon a time", "max_tokens": 150, "temperature": 0.8, "seed": 11}
SHORT = {"prompt": "The capital of France", "max_tokens": 8, "temperature": 0}


@pytest.fixture(scope="module")
def narrow(make_node):
    """A node whose pool runs one request at a time."""
    return make_node(LOCKSTEP_MAX_BATCH="1", LOCKSTEP_GPU="off")


def submit(node, request_id, sla, **fields):
    body = {"id": request_id, "sla": sla, **fields}
    assert httpx.post(f"{node.url}/v1/jobs", json=body).status_code == 202


def promote(node, request_id, sla):
    return httpx.post(f"{node.url}/v1/jobs/{request_id}/promote", json={"sla": sla}).json()


def journalled(node, request_id):
    """Token ids and digest, once it has finished."""
    job = node.end(request_id)
    assert job["status"] == "finished", job
    return node.journalled(request_id)[0], job["digest"]


def events(node, request_id):
    """All events of a job's stream, to its end."""
    url = f"{node.url}/v1/jobs/{request_id}/events"
    with httpx.stream("GET", url, timeout=120) as response:
        lines = [line for line in response.iter_lines() if line.startswith("data: ")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


@pytest.fixture(scope="module")
def undisturbed(narrow):
    submit(narrow, "plain", "batch", **LONG)
    return journalled(narrow, "plain")


def test_promoted_in_mid_generation_the_tokens_are_the_same(narrow, undisturbed):
    submit(narrow, "up", "batch", **LONG)
    wait_for(lambda: narrow.num_tokens("up") > 5, "tokens")
    assert promote(narrow, "up", "realtime")["result"] == "promoted"
    assert narrow.num_tokens("up") < 150, "promoted too late"
    *tokens, end = events(narrow, "up")
    assert ([event["token_id"] for event in tokens], end["digest"]) == undisturbed
    assert (end["sla"], narrow.store.job("up")["sla"]) == ("realtime", "realtime")


def test_a_promoted_request_that_waits_goes_before_the_one_that_runs(narrow, undisturbed):
    """One batch request is in mid-generation, another waits and becomes realtime: it is served
    at once, and the displaced one goes on where it was."""
    submit(narrow, "first", "batch", **LONG)
    submit(narrow, "second", "batch", **SHORT)
    wait_for(lambda: narrow.num_tokens("first") > 5, "tokens")
    assert promote(narrow, "second", "realtime")["result"] == "promoted"
    second = narrow.end("second")
    assert narrow.num_tokens("first") < 150, "it waited for the first one"
    assert (second["status"], second["sla"]) == ("finished", "realtime")
    assert journalled(narrow, "first") == undisturbed


def test_a_demoted_request_makes_way_and_ends_the_same(narrow, undisturbed):
    submit(narrow, "down", "realtime", **LONG)
    submit(narrow, "next", "standard", **SHORT)
    wait_for(lambda: narrow.num_tokens("down") > 5, "tokens")
    assert promote(narrow, "down", "batch")["result"] == "demoted"
    assert narrow.end("next")["status"] == "finished"
    assert narrow.num_tokens("down") < 150, "it did not make way"
    assert journalled(narrow, "down") == undisturbed
