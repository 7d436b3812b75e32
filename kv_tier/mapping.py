"""A part of a file, mapped to be read. Unlike Python's mmap it needs no descriptor of its own.

A long session is hundreds of files, each mapped from the moment it was verified until an engine has
it: one descriptor each would be twice as many as there are files.
"""

import ctypes
import mmap
import os
import weakref
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

MAP_FAILED: Final = ctypes.c_void_p(-1).value


def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    libc.mmap.argtypes = (pointer, size, number, number, number, ctypes.c_int64)
    libc.mmap.restype = pointer
    libc.munmap.argtypes = (pointer, size)
    libc.mremap.argtypes = (pointer, size, size, number, pointer)
    libc.mremap.restype = pointer
    libc.madvise.argtypes = (pointer, size, number)
    return libc


LIBC: Final = _libc()


def map_pages(fd: int, offset: int, num_bytes: int) -> "npt.NDArray[np.uint8]":
    """(num_bytes,) of the file from offset on, read-only; fd may be closed.

    offset, num_bytes  multiples of the page size; all of it lies in the file

    Unmapped with the last array over it.   Raises OSError.
    """
    import numpy as np  # here, so that who only lists sessions does not load it

    assert offset % mmap.PAGESIZE == num_bytes % mmap.PAGESIZE == 0 < num_bytes, (offset, num_bytes)
    address = LIBC.mmap(None, num_bytes, mmap.PROT_READ, mmap.MAP_SHARED, fd, offset)
    if address == MAP_FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    owner = (ctypes.c_ubyte * num_bytes).from_address(address)
    weakref.finalize(owner, LIBC.munmap, address, num_bytes).atexit = False
    return np.frombuffer(memoryview(owner).toreadonly(), np.uint8)
