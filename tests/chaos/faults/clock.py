"""Faults of the wall clock. Leases, deadlines and ids of entries are made by the store's own."""

from tests.chaos.storm import Storm

HOUR_S = 3600.0


def forward(storm: Storm) -> None:
    """An hour passes at once: all leases end, and so do deadlines."""
    storm.node.set_clock(HOUR_S)


def backward(storm: Storm) -> None:
    """An hour comes once more: leases last an hour longer than they should."""
    storm.node.set_clock(-HOUR_S)


def there_and_back(storm: Storm) -> None:
    """Somebody sets it wrong, sees it, and sets it right."""
    storm.node.set_clock(storm.chance.choice([-HOUR_S, HOUR_S, 60.0, -60.0]))
    storm.sleep(1, 3)
    storm.node.set_clock(0)


def drifting(storm: Storm) -> None:
    """It jumps a little, again and again."""
    for _ in range(10):
        storm.node.set_clock(storm.chance.uniform(-5, 5))
        storm.sleep(0, 0.4)
    storm.node.set_clock(0)
