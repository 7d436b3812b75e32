"""The chain is what its page says, byte by byte."""

from xxhash import xxh3_64_intdigest

from workers.engine.digest import first_link, link_text, next_link, parse_link


def test_the_first_link_names_arithmetic_and_weights():
    assert first_link("1-ab", "cd") == xxh3_64_intdigest(b"1-ab:cd")


def test_a_link_is_over_previous_token_and_sum_little_endian():
    packed = bytes([1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0])
    assert next_link(1, 2, 3) == xxh3_64_intdigest(packed)


def test_text_keeps_leading_zeros():
    assert link_text(255) == "00000000000000ff"
    assert parse_link("00000000000000ff") == 255
