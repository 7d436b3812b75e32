"""The size and shape of our own files. Limits are ratchets: lower them when the code allows."""

import ast
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("ingest", "router", "workers", "kernels", "kv_tier", "tests")
FILE_LINES_MAX, FUNCTION_LINES_MAX, LINE_WIDTH_MAX = 500, 70, 100
C_FILE_LINES_MAX = 600
# names that say nothing
NEVER = {"utils", "util", "common", "helpers", "base", "misc", "manager"}


def files(*endings: str) -> list[Path]:
    found = (p for folder in FOLDERS for p in (ROOT / folder).rglob("*") if p.suffix in endings)
    return sorted(p for p in found if "build" not in p.relative_to(ROOT).parts)


def each(paths: list[Path]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("path", paths, ids=lambda p: str(p.relative_to(ROOT)))


def widest(text: str) -> int:
    """Columns of the widest line; what a linter is told at its end does not count, as with ruff."""
    lines = re.sub(r"  # (noqa|type: ignore).*", "", text).splitlines()
    return max(map(len, lines), default=0)


@each(files(".py"))
def test_file_feels_at_home(path):
    text = path.read_text()
    tree = ast.parse(text)
    assert ast.get_docstring(tree), "begins with a sentence that says what it is for"
    assert len(text.splitlines()) <= FILE_LINES_MAX
    assert widest(text) <= LINE_WIDTH_MAX
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = node.end_lineno - node.lineno + 1
            assert length <= FUNCTION_LINES_MAX, f"{node.name}: {length} lines"


@each(files(".py"))
def test_file_has_a_name_of_its_own(path):
    """kv_tier/inspect.py would break `import inspect` for whoever runs a file of that folder."""
    assert path.stem not in sys.stdlib_module_names or path.stem.startswith("__")
    assert path.stem not in NEVER


@each(files(".c", ".h", ".cu"))
def test_c_file_feels_at_home(path):
    text = path.read_text()
    assert text.startswith(("/*", "//")), "begins with a sentence that says what it is for"
    assert len(text.splitlines()) <= C_FILE_LINES_MAX
    assert widest(text) <= LINE_WIDTH_MAX


@each(files(".lua"))
def test_script_names_what_it_is_given(path):
    head = path.read_text().splitlines()[:1]
    assert head and head[0].startswith("--"), "begins with a sentence that says what it is for"
    assert widest(path.read_text()) <= LINE_WIDTH_MAX
