"""Which arithmetic this is: the version of ARITHMETIC.md and a hash of the tables it uses.

The version goes into every digest and every name of kept state, so that bits of two arithmetics
are never mixed. It changes with every change of an order of summation, a polynomial, a rounding
rule or a table.
"""

from hashlib import blake2b
from typing import Final

ARITHMETIC: Final = 2  # the number at the top of ARITHMETIC.md
TABLES_HASH: Final = "6b89d3901cd6da4e"  # of tables_hash(); a test computes it again
ARITHMETIC_VERSION: Final = f"{ARITHMETIC}-{TABLES_HASH}"


def tables_hash() -> str:
    """16 hexadecimal digits over RoPE tables of the usual bases, widths and positions."""
    from kernels.tables import rope_table  # whoever wants the version alone needs no numpy

    digest = blake2b(digest_size=8)
    for theta in (1e4, 1e5, 5e5, 1e6, 1e7):
        for rotated in (32, 64, 128):
            table = rope_table(theta, rotated, 1024, None, adjacent=True)
            digest.update(table.cos.astype("<f4").tobytes())
            digest.update(table.sin.astype("<f4").tobytes())
    return digest.hexdigest()
