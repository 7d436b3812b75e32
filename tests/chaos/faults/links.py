"""Faults of the connections to Redis, of the node's parts and of its clients alike."""

from tests.chaos.node import LEASE_S
from tests.chaos.storm import Storm


def cut(storm: Storm) -> None:
    """All are reset, some times."""
    for _ in range(storm.chance.randrange(1, 6)):
        storm.note(f"{storm.node.to_store.cut()}")
        storm.sleep(0, 0.6)


def stall(storm: Storm) -> None:
    """Nothing moves for about as long as a lease lasts."""
    storm.node.to_store.stalled.set()
    storm.sleep(1, LEASE_S + 2)
    storm.node.to_store.stalled.clear()


def slow(storm: Storm) -> None:
    """Each piece takes its time."""
    storm.node.to_store.delay_s = storm.chance.choice([0.005, 0.02, 0.08])
    storm.sleep(2, 4)
    storm.node.to_store.delay_s = 0.0


def lost_replies(storm: Storm) -> None:
    """What was asked for is done, and nobody hears it: who asks again must not do it twice."""
    link = storm.node.to_store
    for _ in range(8):
        link.lose_replies = storm.chance.randrange(1, 4)
        storm.sleep(0.1, 0.5)
    link.lose_replies = 0
    storm.note(f"{link.lost} in all")


def torn_requests(storm: Storm) -> None:
    """Half a command arrives."""
    link = storm.node.to_store
    for _ in range(6):
        link.tear = storm.chance.randrange(1, 4)
        storm.sleep(0.1, 0.5)
    link.tear = 0
    storm.note(f"{link.lost} in all")


def down(storm: Storm) -> None:
    """Redis cannot be reached: a fail-over that takes its time."""
    link = storm.node.to_store
    link.refuses = True
    link.cut()
    storm.sleep(1, LEASE_S + 2)
    link.refuses = False
