"""A load beside the simulator: the node's own costs, the same requests, quantity by quantity."""

import pytest

from ingest.command.bench.serve.beside import (
    NoCosts,
    as_written,
    compared,
    hardware_of,
    simulate,
)
from ingest.command.bench.serve.record import Record
from router.simulator.workload import Wish
from workers.cost import CostModel
from workers.sla import SlaTable
from workers.wire import PoolLoad

TABLE = SlaTable()
COST = CostModel(fixed_ms=5, decode_ms=1, prefill_ms=0.5, kv_bytes_per_token=1000)


def load(pool="cpu", state="ready", **fields):
    told = {"cost": COST, "capacity": 4, "total_blocks": 64, "step_tokens": 128}
    return PoolLoad(pool=pool, worker="w", state=state, model="m", **(told | fields))


def wish(number, at_ms, prompt=100, output=10):
    return Wish(f"r{number}", "standard", float(at_ms), prompt, output, output)


def test_one_request_on_an_idle_pool_takes_what_its_cost_model_says():
    hardware = hardware_of([load(), load("gpu", "absent", cost=None)], 4096)
    [record] = simulate([wish(0, 50)], hardware, TABLE)
    assert record.ttft_ms == pytest.approx(COST.prefill_ms_of(100, chunk=128), rel=0.05)
    assert record.tpot_ms == pytest.approx(COST.step_ms(1, 105), rel=0.05)
    assert (record.status, record.output_tokens, record.pool) == ("finished", 10, "cpu")


def test_each_request_has_its_record_in_order_and_the_same_every_time():
    wishes = [wish(n, 20 * n) for n in range(30)]
    hardware = hardware_of([load(), load("gpu")], 4096)
    records = simulate(wishes, hardware, TABLE)
    assert [record.id for record in records] == [w.id for w in wishes]
    again = simulate(wishes, hardware, TABLE)
    assert [record.line() for record in records] == [record.line() for record in again]
    assert {record.pool for record in records} == {"cpu", "gpu"}
    assert all(row["ratio"] == 1.0 for row in compared(records, again))


def test_an_answer_that_ended_early_is_simulated_as_long_as_it_was():
    short = Record("a", "standard", 0.0, 100, 10)
    short.output_tokens = 3
    assert [w.output for w in as_written([wish(0, 0), wish(1, 0)], [short, short])] == [3, 3]


def test_a_pool_that_has_measured_nothing_is_not_guessed():
    with pytest.raises(NoCosts, match="the cpu pool has not said yet"):
        hardware_of([load(cost=None)], 4096)
