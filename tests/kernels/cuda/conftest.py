"""The fixtures of devices.py. What could not be tested, pytest's summary says (-rs)."""

from tests.kernels.cuda.devices import gpu, pycuda_place, told

__all__ = ["gpu", "pycuda_place", "told"]  # fixtures
