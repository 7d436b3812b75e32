"""Faults of those who send: garbage, doubles, disorder, too much, other versions, restlessness."""

import msgspec

from tests.chaos.storm import Storm

LONG = "word " * 6000  # more than any model here takes


def garbage(storm: Storm) -> None:
    """What nobody can read ends at once, under an id that its sender can compute."""
    for words in (
        ("m", b"\xc1\xc1\xc1"),
        ("m", msgspec.msgpack.encode([1, 2])),
        ("m", msgspec.msgpack.encode({"prompt": 7, "max_tokens": "many"})),
        ("prompt", ""),
        ("nothing", "at all"),
        ("prompt", b"\xff\xfe", "max_tokens", "3"),
        ("id", "../../etc", "prompt", "Hi", "max_tokens", "2"),
        ("prompt", "Hi", "max_tokens", "-1"),
        ("prompt", "Hi", "webhook_url", "file:///etc/passwd"),
    ):
        sla = storm.chance.choice(["realtime", "standard", "batch"])
        entry = storm.add(sla, *words)
        storm.record.bad.add(f"{sla}-{entry}")


def too_large(storm: Storm) -> None:
    """A prompt longer than the context, by both doors; a body of many megabytes."""
    request_id = storm.new_id("large")
    storm.add("standard", "id", request_id, "prompt", LONG, "max_tokens", "8")
    storm.record.bad.add(request_id)
    storm.post_refused({"prompt": LONG, "max_tokens": 8})
    storm.post_refused({"prompt": "x" * (40 << 20)})


def other_version(storm: Storm) -> None:
    """A message of a later release is refused in words; one without a version is of the first."""
    later = storm.new_id("later")
    storm.add("batch", "m", msgspec.msgpack.encode({"v": 99, "id": later, "prompt": "Hi"}))
    storm.record.bad.add(later)


def doubles(storm: Storm) -> None:
    """Whatever was asked lately is sent again, each some times, in any order, by any class."""
    recent = list(storm.record.asked.values())[-20:]
    again = [asked for asked in recent for _ in range(storm.chance.randrange(4))]
    storm.chance.shuffle(again)
    for asked in again:
        body = msgspec.msgpack.encode({"id": asked.id, **asked.body})
        storm.add(storm.chance.choice(["realtime", "standard", "batch"]), "m", body)
    storm.note(f"{len(again)}")


def restless(storm: Storm) -> None:
    """Everything is told to go to the other pool, again and again."""
    for _ in range(12):
        storm.move_everything()
        storm.sleep(0.1, 0.3)


def mass_cancel(storm: Storm) -> None:
    """Half of what was asked lately is cancelled at once."""
    recent = list(storm.record.asked)[-30:]
    for request_id in storm.chance.sample(recent, k=len(recent) // 2):
        storm.record.meddled.add(request_id)
        storm.node.store.cancel(request_id)
