"""The thread pool: survives fork, serves several Python threads, starts what was asked."""

import os
import subprocess
import sys
import threading

import numpy as np

from kernels.cpu import _cpu
from kernels.cpu.host import CpuOps
from tests.kernels.cases import product, random_matrix, random_rows, same_bits

W, X = random_matrix("q4_0", 4096, 1024), random_rows(4, 1024)
EXPECTED = product(CpuOps(1), X, W)


def test_a_forked_child_computes_and_the_parent_goes_on():
    ops = CpuOps(2)
    same_bits(EXPECTED, product(ops, X, W))
    child = os.fork()
    if child == 0:
        same = all((product(ops, X, W) == EXPECTED).all() for _ in range(20))
        os._exit(0 if same and _cpu.started_threads() == 2 else 1)
    for _ in range(20):
        same_bits(EXPECTED, product(ops, X, W))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_fork_while_another_thread_computes_leaves_a_working_child():
    ops, stop = CpuOps(2), threading.Event()

    def compute():
        while not stop.is_set():
            product(ops, X, W)

    other = threading.Thread(target=compute)
    other.start()
    try:
        for _ in range(10):
            child = os.fork()
            if child == 0:
                os._exit(0 if (product(ops, X, W) == EXPECTED).all() else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        stop.set()
        other.join()


def test_several_python_threads_get_the_same_bits():
    wrong = []

    def compute(count):
        ops = CpuOps(count)
        for _ in range(30):
            wrong.extend(np.flatnonzero(product(ops, X, W) != EXPECTED))

    workers = [threading.Thread(target=compute, args=(n,)) for n in (1, 2, 3, 4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


def test_a_pool_starts_no_more_threads_than_asked():
    code = (
        "from kernels.cpu import _cpu\n"
        "from tests.kernels.test_pool import W, X, CpuOps, product\n"
        "assert _cpu.started_threads() == 1\n"
        "for n in (3, 2, 3, 1): product(CpuOps(n), X, W)\n"
        "assert _cpu.started_threads() == 3, _cpu.started_threads()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
