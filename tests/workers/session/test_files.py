"""Where sessions lie, and how much of the disk they may take."""

import os
import resource
import sys

import pytest

from kv_tier.budget import TierLimits
from kv_tier.remote.bucket import NoStore
from workers.session.files import (
    FREE_BYTES,
    allow_many_files,
    find_remote,
    forget_stored,
    kv_root,
    limits_of,
    open_remote,
    open_tier,
)
from workers.settings import Settings


@pytest.fixture
def settings(tmp_path):
    return Settings(home=tmp_path / "home")


def test_a_tier_is_opened_under_the_nodes_home(settings):
    tier = open_tier(settings)
    assert tier.root == kv_root(settings) == settings.home / "kv"
    assert tier.root.is_dir()
    assert tier.root.stat().st_mode & 0o77 == 0, "nobody else may look"
    tier.close()


def test_half_of_the_disk_at_most_when_nothing_is_said(settings, tmp_path):
    disk = os.statvfs(tmp_path)
    total = disk.f_blocks * disk.f_frsize
    limits = limits_of(settings, tmp_path)
    assert limits == TierLimits(
        quota_bytes=total // 2,
        tenant_bytes=0,
        keep_free_bytes=max(total // 20, FREE_BYTES),
        ttl_ms=30 * 86_400_000,
    )


def test_what_is_said_holds_and_the_rest_of_the_disk_stays_free_all_the_same(tmp_path):
    said = Settings(home=tmp_path, kv_disk_mib=100, kv_tenant_mib=7, session_ttl_s=60)
    limits = limits_of(said, tmp_path)
    assert (limits.quota_bytes, limits.tenant_bytes, limits.ttl_ms) == (100 << 20, 7 << 20, 60_000)
    assert limits.keep_free_bytes >= FREE_BYTES


def test_whoever_gives_sessions_a_disk_of_their_own_says_what_stays_free_of_it(tmp_path):
    """A small disk would have no room for sessions beside 2 GiB that stay free."""
    said = Settings(home=tmp_path, kv_keep_free_mib=3)
    assert limits_of(said, tmp_path).keep_free_bytes == 3 << 20


def test_a_process_may_open_as_many_files_as_it_is_allowed():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, before[1]), before[1]))
        allow_many_files()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        assert hard == before[1]
        assert soft == min(hard if hard >= 0 else 1 << 16, 1 << 16)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.fixture
def tier(settings):
    tier = open_tier(settings)
    yield tier
    tier.close()


def test_the_object_store_is_the_one_that_is_set(settings, tier, tmp_path):
    assert open_remote(settings, tier) is None
    url = f"file://{tmp_path}/shared"
    told = Settings(kv_store_url=url, kv_store_mib_per_s=2, kv_store_tenant_mib=3)
    remote = open_remote(told, tier)
    assert remote.bucket.url == url
    assert (remote.bytes_per_s, remote.tenant_bytes) == (2 << 20, 3 << 20)
    remote.close()


@pytest.mark.parametrize("url", ["s3://user@bucket/x", "http://host/x", "bucket/x", "s3://a b"])
def test_what_is_no_url_of_a_store_is_refused_at_once(url):
    with pytest.raises(ValueError, match="kv_store_url"):
        Settings(kv_store_url=url)


def test_a_node_whose_object_store_cannot_be_used_goes_on_without(tier, monkeypatch, capfd):
    told = Settings(kv_store_url="file:///proc/nothing/here")
    assert find_remote(told, tier) is None
    assert "no object store: sessions stay on this disk" in capfd.readouterr().err
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(NoStore, match=r"pip install 'lockstep\[objects\]'"):
        open_remote(Settings(kv_store_url="s3://bucket/x"), tier)


def test_what_is_deleted_goes_from_the_object_store_or_it_is_said_why_not(tier, tmp_path):
    told = Settings(kv_store_url=f"file://{tmp_path}/shared")
    remote = open_remote(told, tier)
    place = "sessions/default/s/" + f"{1:020}-{1:020}.manifest"
    remote.bucket.put(place, [b"x"])
    assert forget_stored(told, tier, "default", "s") == ""
    assert list(remote.bucket.list("sessions")) == []
    assert "file://" in forget_stored(
        Settings(kv_store_url="file:///proc/nothing/here"), tier, "default", "s"
    )
    assert forget_stored(Settings(), tier, "default", "s") == ""
    remote.close()
