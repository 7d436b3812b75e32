"""Other people's clients, in an environment of their own: the node is told by LOCKSTEP_BASE_URL.

`make test-clients` makes the environment, starts the node and runs these; `make test` does not.
"""

import os

import pytest

MODEL = "smollm2-135m"
collect_ignore_glob = [] if "LOCKSTEP_BASE_URL" in os.environ else ["test_*.py"]


@pytest.fixture(scope="session")
def base_url() -> str:
    """The node's address, without /v1."""
    return os.environ["LOCKSTEP_BASE_URL"]
