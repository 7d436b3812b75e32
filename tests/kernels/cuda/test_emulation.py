"""The emulation shows what would be wrong on a device, and computes what a device computes."""

from pathlib import Path

import numpy as np
import pytest

from kernels.cuda.emulate.build import NoCompiler, library
from kernels.cuda.emulate.host import ORDERS, EmulatedLauncher, KernelStuck
from kernels.cuda.launch import Kernels

X = np.arange(100, 164, dtype=np.int32)
POISON = np.full(64, 0xA5A5A5A5, np.uint32).view(np.int32)


@pytest.fixture(scope="module")
def wrong():
    """A function that runs a kernel of wrong.cu on 64 threads; gives what it wrote."""
    path = library(Path(__file__).with_name("wrong.cu"))

    def run(kernel, order, *, size=64):
        out = np.zeros(size, np.int32)
        Kernels(EmulatedLauncher(path, order)).run(kernel, (1,), 64, out, X)
        return out

    return run


def test_a_missing_barrier_shows_in_some_order(wrong):
    results = [wrong("no_barrier", order) for order in ORDERS]
    assert not all(np.array_equal(out, np.roll(X, -32)) for out in results)


@pytest.mark.parametrize("order", ORDERS)
def test_with_the_barrier_every_order_gives_the_same(wrong, order):
    assert np.array_equal(wrong("with_barrier", order), np.roll(X, -32))


@pytest.mark.parametrize("order", ORDERS)
def test_threads_that_never_meet_are_an_error_with_the_kernels_name(wrong, order):
    with pytest.raises(KernelStuck, match="divided"):
        wrong("divided", order)
    assert np.array_equal(wrong("with_barrier", order), np.roll(X, -32))  # and no harm to the next


def test_an_asynchronous_copy_is_not_there_before_it_is_waited_for(wrong):
    assert np.array_equal(wrong("no_wait", "forward"), POISON)
    assert np.array_equal(wrong("with_wait", "forward"), X)


def test_waiting_for_all_but_one_group_brings_the_others(wrong):
    out = wrong("first_of_two", "forward", size=128)
    assert np.array_equal(out[:64], X)
    assert np.array_equal(out[64:], POISON)


def test_a_tile_product_is_the_exact_integer_product(wrong):
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-128, 128, (rows, 32), dtype=np.int8) for rows in (16, 8))
    out = np.zeros((16, 8), np.int32)
    path = library(Path(__file__).with_name("wrong.cu"))
    Kernels(EmulatedLauncher(path)).run("tile_product", (1,), 32, out, a, b)
    assert np.array_equal(out, a.astype(np.int32) @ b.astype(np.int32).T)


def test_a_source_that_does_not_compile_is_one_error(tmp_path):
    broken = tmp_path / "broken.cu"
    broken.write_text("// broken.cu - no C++\nKERNEL(;\n")
    with pytest.raises(NoCompiler, match="refuses broken"):
        library(broken, tmp_path)
    assert not list(tmp_path.glob("*.so"))


def test_a_machine_without_a_compiler_is_one_error(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoCompiler, match="not installed"):
        library(folder=tmp_path)


def test_what_is_compiled_is_not_compiled_again(tmp_path):
    source = tmp_path / "one.cu"
    source.write_text("// one.cu - nothing\n")
    first = library(source, tmp_path)
    made = first.stat().st_mtime_ns
    assert library(source, tmp_path) == first
    assert first.stat().st_mtime_ns == made
    source.write_text("// one.cu - something else\n")
    assert library(source, tmp_path) != first
