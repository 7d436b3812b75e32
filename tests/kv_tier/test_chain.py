"""Names of KV: equal exactly where everything that it was computed from is equal."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels import ops
from kv_tier.chain import BLOCK_TOKENS, Chain, common_length, fingerprint_of, read_salt
from kv_tier.format import CorruptFile

SALT = bytes(range(32))
FINGERPRINT = fingerprint_of("weights", 3, (2, 3), (4,))
CHAIN = Chain(SALT, "acme", FINGERPRINT)
IDS = list(range(700))


def test_a_block_is_as_long_as_the_kernels_say():
    assert BLOCK_TOKENS == ops.BLOCK_TOKENS


def test_keys_are_32_bytes_and_known():
    """Names on disk: if this changes, all KV there is lost."""
    assert CHAIN.next(CHAIN.start, [1, 2, 3]).hex() == KNOWN


KNOWN = "bb6ee2294ce1ba355c6d678fe6891a618a5cb3e2dec6d69ae4ebcc2459d905c2"


def test_one_key_for_each_full_block():
    keys = CHAIN.block_keys(IDS)
    first = CHAIN.next(CHAIN.start, IDS[:256])
    assert keys == [first, CHAIN.next(first, IDS[256:512])]
    assert CHAIN.block_keys(IDS[:255]) == []


@pytest.mark.parametrize("position", [0, 1, 255, 256, 257, 511, 512, 700])
def test_the_key_at_a_position_is_of_all_tokens_before_it(position):
    key = CHAIN.start
    for begin in range(0, position, 256):
        key = CHAIN.next(key, IDS[begin : min(begin + 256, position)])
    assert key == CHAIN.key_at(IDS, position) == CHAIN.key_at(IDS[:position], position)


@given(st.integers(0, 699), st.integers(0, 2**31 - 1))
def test_one_other_token_gives_other_keys_from_there_on(at, token):
    other = [*IDS[:at], token, *IDS[at + 1 :]]
    same = [a == b for a, b in zip(CHAIN.block_keys(IDS), CHAIN.block_keys(other), strict=True)]
    block = at // 256 if token != IDS[at] else 3
    assert same == [n < block for n in range(2)]
    assert (CHAIN.key_at(IDS, 700) == CHAIN.key_at(other, 700)) == (token == IDS[at])


@pytest.mark.parametrize(
    "other",
    [
        Chain(bytes(32), "acme", FINGERPRINT),
        Chain(SALT, "acmf", FINGERPRINT),
        Chain(SALT, "acme", fingerprint_of("weight", "s3", (2, 3), (4,))),
        Chain(SALT, "acme", fingerprint_of("weights", 4, (2, 3), (4,))),
        Chain(SALT, "acme", fingerprint_of("weights", 3, (2, 3, 4))),
        Chain(SALT, "acme", fingerprint_of("weights", 3, (2, 3))),
    ],
)
def test_another_tenant_model_arithmetic_or_shape_shares_no_key(other):
    mine = {CHAIN.start, *CHAIN.block_keys(IDS), CHAIN.key_at(IDS, 700)}
    assert not mine & {other.start, *other.block_keys(IDS), other.key_at(IDS, 700)}


def test_a_number_and_its_text_are_the_same_arithmetic():
    assert fingerprint_of("weights", 3) == fingerprint_of("weights", "3")


def test_the_salt_is_made_once_and_for_its_owner_alone(tmp_path):
    root = tmp_path / "kv"
    salt = read_salt(root)
    assert len(salt) == 32 and salt == read_salt(root)
    assert (root / "salt").stat().st_mode & 0o777 == 0o600
    assert salt != read_salt(tmp_path / "other")


def test_all_who_come_first_get_the_same_salt(tmp_path):
    with ThreadPoolExecutor(8) as threads:
        salts = set(threads.map(read_salt, [tmp_path / "kv"] * 8))
    assert len(salts) == 1


def test_a_salt_of_another_length_is_not_used(tmp_path):
    (tmp_path / "salt").write_bytes(b"short")
    with pytest.raises(CorruptFile, match="5 bytes"):
        read_salt(tmp_path)


@given(
    one=st.lists(st.integers(0, 2), max_size=6),
    other=st.lists(st.integers(0, 2), max_size=6),
)
def test_what_two_logs_have_in_common_is_their_longest_beginning(one, other):
    length = common_length(one, other)
    assert one[:length] == other[:length]
    assert one[: length + 1] != other[: length + 1] or length == min(len(one), len(other))


def test_a_tuple_and_a_list_of_the_same_tokens_have_all_in_common() -> None:
    """A log's token ids are a tuple, those of a sequence a list."""
    assert common_length((1, 2, 3), [1, 2, 3, 4]) == 3
    assert common_length((1, 2, 3), [1, 5, 3]) == 1
    assert common_length((), [1]) == 0
