"""Names of pools: `gpu`, `cpu` where a node is alone; `gpu@a`, `cpu@a` of a fleet's node `a`.

The name is that of RQ's queue, of reports, and of what hashes say; only here it is taken apart.
"""

from typing import Final

NODE: Final = r"^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$"  # what a node may be called
PROCESSORS: Final = ("gpu", "cpu")  # in order of preference among equals
MARK: Final = "@"


def pool_name(processor: str, node: str) -> str:
    """The pool of a node's processor.   node: "": it is alone on its Redis"""
    return f"{processor}{MARK}{node}" if node else processor


def pools_of(node: str) -> tuple[str, ...]:
    """A node's pools, in order of preference among equals."""
    return tuple(pool_name(processor, node) for processor in PROCESSORS)


def processor_of(pool: str) -> str:
    """gpu or cpu: what computes in a pool."""
    return pool.partition(MARK)[0]


def node_of(pool: str) -> str:
    """Whose pool it is; "": of the only node."""
    return pool.partition(MARK)[2]
