"""FORMAT.md is what the code writes: its tables, its examples, its numbers."""

import ast
import re
from pathlib import Path

from kv_tier import format as names
from kv_tier.format import KINDS, PAGE_BYTES
from kv_tier.manifest import Checkpoint, Manifest, Message, encode_manifest
from kv_tier.objects import ObjectStore, Source

FOLDER = Path(__file__).parents[2] / "kv_tier"
PAGE = (FOLDER / "FORMAT.md").read_text()

KEY, PARENT = bytes(range(32)), bytes(range(32, 64))
FINGERPRINT = bytes(range(64, 96))
TAIL = Source(KEY, "tail", 2, (b"KV of two ", b"tokens"), FINGERPRINT, "acme", PARENT)
SMALL = Manifest(
    tenant="acme",
    session_id="chat-1",
    generation=2,
    fence=5,
    fingerprint=FINGERPRINT,
    model="m",
    weights_digest="w",
    arithmetic_version="3",
    created_ms=1_790_000_000_000,
    used_ms=1_790_000_060_000,
    token_ids=(9, 8, 7),
    messages=(Message("user", "hi"), Message("assistant", "ho", 2, 3)),
    num_kv=2,
    tail=KEY,
    checkpoints=(Checkpoint(2, KEY),),
    last_request="r",
    digest="d",
)


def hex_lines(data: bytes) -> str:
    """Sixteen bytes a line; lines of zeros are left out and stand as one *."""
    lines: list[str] = []
    for begin in range(0, len(data), 16):
        row = data[begin : begin + 16]
        if any(row):
            text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
            lines.append(f"{begin:04x}  {row.hex(' '):<47}  {text}")
        elif lines and lines[-1] != "*":
            lines.append("*")
    return "\n".join(lines)


def table_under(heading: str) -> list[tuple[int, int, str]]:
    """(offset, size, field) of the rows of the page's table under a heading."""
    text = PAGE.split(heading, 1)[1].split("\n## ", 1)[0]
    rows = re.findall(r"^\| (\d+) \| (\d+) \| ([a-z_0-9]+)", text, re.MULTILINE)
    return [(int(offset), int(size), field) for offset, size, field in rows]


def test_the_example_of_an_object_is_what_is_written(tmp_path):
    store = ObjectStore(tmp_path)
    assert store.write(TAIL) == 2 * PAGE_BYTES
    assert hex_lines(store.path("tail", KEY).read_bytes()) in PAGE


def test_the_example_of_a_manifest_is_what_is_written():
    assert hex_lines(encode_manifest(SMALL)) in PAGE


def test_the_tables_have_no_gap_and_are_as_long_as_the_structs():
    for heading, length in (("### Header of an object", 240), ("### Head of a manifest", 256)):
        end = 0
        for offset, size, field in table_under(heading):
            assert offset == end, (heading, field)
            end += size
        assert end == length, heading


def test_the_page_names_what_the_code_names():
    for name in ("TOKENS", "BLOCKS", "TAIL", "CHECKPOINTS", "MESSAGES", "WORDS"):
        assert re.search(rf"\b{getattr(names, name)} {name}\b", PAGE), name
    for number, kind in enumerate(KINDS, 1):
        assert f"{number} {kind}" in PAGE
    assert "`LOCKOBJ\\n`" in PAGE and "`LOCKMAN\\n`" in PAGE


def test_struct_formats_stand_in_one_file():
    """And in the one of exports, whose bytes are its own."""
    for path in FOLDER.glob("*.py"):
        imported = [
            alias.name
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Import)
            for alias in node.names
        ]
        assert "struct" not in imported or path.name in ("format.py", "bundle.py"), path.name
