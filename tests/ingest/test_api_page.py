"""docs/api.md is what the code says."""

from pathlib import Path

from tests.ingest.api_page import page

API = Path(__file__).parents[2] / "docs/api.md"


def test_the_page_of_the_api_is_what_the_code_says():
    made = page() + "\n"
    assert API.read_text() == made, "run: python -m tests.ingest.api_page > docs/api.md"
