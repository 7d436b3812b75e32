"""The fixtures of devices.py, and what could not be tested without a PyCUDA."""

from tests.kernels.cuda.devices import LEFT_OUT, gpu, pycuda_place, told

__all__ = ["gpu", "pycuda_place", "told"]  # fixtures


def pytest_terminal_summary(terminalreporter):
    """What was not tested is said, whatever pytest's verbosity."""
    for reason in LEFT_OUT[:1]:
        terminalreporter.write_line(f"left out: the GPU's host code, since {reason}")
