"""What a request costs the store does not grow with the number of nodes."""

import time

import pytest
from redis import Redis

from ingest.client import Client
from tests.fleet.simulation.fake_node import PREFIX, FakeNode, make_text
from tests.fleet.simulation.operations import Meter
from workers.text.text_model import TextModel
from workers.wire import Keys

NODES, REQUESTS = 8, 16
ONCE_A_SECOND = 1.2  # each router waits for messages anew, and says that it lives
GAP_S = 0.06  # all that is woken by a message is asleep again before the next one


@pytest.fixture
def nodes(redis_url, tmp_path):
    make_text(tmp_path)
    text = TextModel.load(tmp_path)
    made = [FakeNode(redis_url, f"n{number}", text) for number in range(NODES)]
    for node in made:
        node.start()
    yield made
    for node in made:
        node.stop_asked.asked = True
    for node in made:
        node.stop()


def test_a_message_wakes_one_router_of_many(nodes, redis_url):
    """A doorbell that all hear costs as many reads as there are nodes."""
    meter, client = Meter(redis_url, Keys(PREFIX)), Client(redis_url, PREFIX)
    routers = [meter.keys.router(node.router.consumer.name) for node in nodes]
    while meter.redis.exists(*routers) < NODES:
        time.sleep(0.05)
    before = meter.look()
    ids = []
    for _ in range(REQUESTS):
        ids.append(client.enqueue(prompt="hello", max_tokens=2))
        time.sleep(GAP_S)
    meter.wait_until_idle()
    since = meter.look().since(before)
    jobs = [meter.redis.hmget(meter.keys.job(one), "status", "pool") for one in ids]
    assert {status for status, _ in jobs} == {"finished"}
    assert len({pool for _, pool in jobs}) > NODES / 2
    reads = since.commands.get("xread", 0) + since.commands.get("xreadgroup", 0)
    assert reads - ONCE_A_SECOND * NODES * since.at_s < 3 * REQUESTS


def test_the_meter_leaves_out_what_it_asks_itself(redis_url):
    meter = Meter(redis_url, Keys(PREFIX))
    before = meter.look()
    meter.wait_until_idle()
    Redis.from_url(redis_url).set("x", 1)
    found = {name: n for name, n in meter.look().since(before).commands.items() if n}
    assert found == {"set": 1}
