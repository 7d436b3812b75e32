"""A refusal in the words of the API that was asked: max_tokens is max_output_tokens in one."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from ingest.errors import ApiError


@contextmanager
def in_words_of(names: Mapping[str, str]) -> Iterator[None]:
    """Raises the ApiErrors that come with the API's own names of our fields."""
    try:
        yield
    except ApiError as error:
        ours = (error.param or "").partition("[")[0].partition(".")[0]
        theirs = names.get(ours)
        if theirs is not None and error.param is not None:
            # a place in our messages is none in theirs
            place, error.param = error.param, theirs
            error.message = theirs + error.message.removeprefix(place)
        raise
