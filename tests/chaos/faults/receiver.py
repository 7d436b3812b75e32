"""Faults of whoever receives webhooks, and of the way there."""

from collections.abc import Callable

from tests.chaos.moody_receiver import MOODS
from tests.chaos.storm import Storm


def moody(mood: str) -> Callable[[Storm], None]:
    """It is in that mood for some seconds."""
    assert mood in MOODS

    def be(storm: Storm) -> None:
        storm.receiver.mood = mood
        storm.sleep(2, 5)
        storm.receiver.mood = ""

    return be


def down(storm: Storm) -> None:
    """Nobody listens there."""
    storm.node.to_receiver.refuses = True
    storm.node.to_receiver.cut()
    storm.sleep(2, 5)
    storm.node.to_receiver.refuses = False


def cut_off(storm: Storm) -> None:
    """Connections to it are cut in the middle."""
    for _ in range(storm.chance.randrange(3, 12)):
        storm.node.to_receiver.cut()
        storm.sleep(0, 0.4)


def lost_answers(storm: Storm) -> None:
    """It has taken them, and its answers do not arrive."""
    storm.node.to_receiver.lose_replies = storm.chance.randrange(1, 8)
    storm.sleep(2, 4)
    storm.node.to_receiver.lose_replies = 0
