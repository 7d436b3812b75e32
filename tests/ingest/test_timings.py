"""Every answer says where its time went: queue, prompt, prediction; pool and reason."""

from msgspec.structs import replace

from workers.timings import timings_of
from workers.wire import EndEvent, Usage

END = EndEvent(
    status="finished",
    usage=Usage(prompt_tokens=6, output_tokens=5, cached_tokens=2),
    ttft_ms=30.0,
    tpot_ms=2.0,
    queue_ms=10.0,
    pool="cpu",
    reason="cpu: ready",
)
NAMES = {
    *("queue_ms", "prompt_ms", "predicted_ms", "prompt_n", "predicted_n", "cached_n"),
    *("pool", "reason"),
}


def test_the_times_add_up_to_the_whole():
    assert timings_of(END) == {
        "queue_ms": 10.0,
        "prompt_ms": 20.0,
        "predicted_ms": 8.0,
        "prompt_n": 6,
        "predicted_n": 5,
        "cached_n": 2,
        "pool": "cpu",
        "reason": "cpu: ready",
    }


def test_a_time_has_three_decimals():
    end = replace(END, tpot_ms=17.526, usage=replace(END.usage, output_tokens=20))
    assert str(timings_of(end)["predicted_ms"]) == "332.994"


def test_what_its_owner_did_not_see_is_null():
    told = timings_of(EndEvent(status="cancelled"))
    assert [told[name] for name in ("queue_ms", "prompt_ms", "predicted_ms")] == [None] * 3
    assert (told["prompt_n"], told["predicted_n"]) == (0, 0)


def test_one_token_takes_no_time_after_itself():
    one = EndEvent(status="finished", usage=Usage(prompt_tokens=1, output_tokens=1), ttft_ms=3.0)
    assert timings_of(one)["predicted_ms"] == 0.0


def test_every_answer_has_them(door, node):
    chat = {"messages": [{"role": "user", "content": "hi"}]}
    whole = door.http.post("/v1/chat/completions", json=chat).json()
    text = door.http.post("/v1/completions", json={"prompt": "hi"}).json()
    door.http.post("/v1/jobs", json={"prompt": "hi", "id": "j"})
    events = door.http.get("/v1/jobs/j/events").text
    job = door.http.get("/v1/jobs/j").json()
    for told in (whole["timings"], text["timings"], job["timings"]):
        assert told.keys() == NAMES
        assert (told["pool"], told["reason"], told["queue_ms"]) == ("cpu", "cpu: stub", 1.5)
    assert '"timings":{"queue_ms":1.5' in events
    streamed = door.http.post("/v1/chat/completions", json={**chat, "stream": True}).text
    assert streamed.count('"timings"') == 1
