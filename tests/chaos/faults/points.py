"""kill -9 exactly before or after a hand-over, and requests that kill whoever takes them up."""

import time

from tests.chaos.storm import Storm

# every script that moves a request or a webhook on, and who runs it
HAND_OVERS = (
    *("accept", "cancel", "promote"),  # api
    *("route", "refuse", "expire_late", "move"),  # router
    *("claim", "compose", "tell", "beat", "hand_back", "hand_over"),  # pools
    *("recover", "reap", "reconcile", "session_note"),
    *("webhook_due", "webhook_end"),  # webhooks
)
POINTS = tuple(f"{when} {name}" for name in HAND_OVERS for when in ("before", "after"))
LOOK_S, WAIT_S = 0.02, 3.0


def kill_at_point(storm: Storm) -> None:
    """Whoever comes there next."""
    die_at(storm, storm.chance.choice(POINTS))


def kill_at_tell(storm: Storm) -> None:
    """Where tokens, ends and webhooks are written: most depends on it."""
    die_at(storm, storm.chance.choice(["before tell", "after tell"]))


def kill_at_claim(storm: Storm) -> None:
    """Between queue and lease there is nothing; right after the lease nobody knows of it."""
    die_at(storm, storm.chance.choice(["before claim", "after claim"]))


def kill_at_route(storm: Storm) -> None:
    die_at(storm, storm.chance.choice(["before route", "after route"]))


def kill_at_accept(storm: Storm) -> None:
    """A client hears nothing, and asks again."""
    die_at(storm, storm.chance.choice(["before accept", "after accept"]))


def kill_at_webhook_end(storm: Storm) -> None:
    """It was posted, and nobody knows: it comes once more, under the same id."""
    die_at(storm, "before webhook_end")


def kill_at_hand_over(storm: Storm) -> None:
    """In the middle of a move to the other pool, for which some requests are told to go."""
    point = storm.node.points / storm.chance.choice(["before hand_over", "after hand_over"])
    storm.note(point.name)
    point.touch()
    end = time.monotonic() + WAIT_S
    while point.exists() and time.monotonic() < end:
        storm.move_everything()
        time.sleep(10 * LOOK_S)
    point.unlink(missing_ok=True)


def die_at(storm: Storm, name: str) -> None:
    """Arm the point, and take it back when nobody comes there in time."""
    point = storm.node.points / name
    point.touch()
    end = time.monotonic() + WAIT_S
    while point.exists() and time.monotonic() < end:
        time.sleep(LOOK_S)
    storm.note(name + (" (nobody came)" if point.exists() else ""))
    point.unlink(missing_ok=True)


def poison(storm: Storm) -> None:
    """A request kills every pool that starts it: it ends as poison, its neighbours do not."""
    request_id = storm.new_id("poison")
    storm.record.poison.add(request_id)
    (storm.node.points / f"start of {request_id}").touch()
    storm.add("standard", "id", request_id, "prompt", "Die.", "max_tokens", "4")
