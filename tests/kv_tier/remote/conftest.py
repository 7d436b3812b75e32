"""Two homes and a folder as their object store."""

import pytest

from kv_tier.remote.bucket import Bucket
from tests.kv_tier.remote.homes import Home, Shaky


@pytest.fixture
def bucket(tmp_path):
    return Shaky(Bucket(f"file://{tmp_path}/shared"))


@pytest.fixture
def homes(tmp_path, bucket):
    """(one, other): each with a salt of its own."""
    both = Home(tmp_path / "one", bucket), Home(tmp_path / "other", bucket)
    yield both
    for home in both:
        home.close()
