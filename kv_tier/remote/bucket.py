"""An object store as the tier uses it: whole objects by name, put, got, listed and deleted.

    s3://bucket/prefix   gs://bucket/prefix   az://container/prefix   file:///folder   memory:///

Credentials, the endpoint of another S3-compatible server (AWS_ENDPOINT, AWS_ALLOW_HTTP) and how
long an answer may take (AWS_TIMEOUT, 30s) come from the environment, where obstore finds them. It
also repeats what failed on the way, with a backoff. An object is there whole or not at all: every
one of these stores promises that.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

MULTIPART_BYTES: Final = 64 << 20  # larger ones go in parts
TRIES: Final = 4  # after the first
PATIENCE: Final = timedelta(seconds=60)  # of all tries of one call
MISSING_EXTRA: Final = "the library obstore is not installed: pip install 'lockstep[objects]'"


class StoreError(Exception):
    """The object store refused, or did not answer, however often it was asked."""


class NoStore(StoreError):
    """It cannot be used at all: what is wrong with its URL or with this installation."""


class NotThere(Exception):
    """There is no object of this name."""


class IsThere(Exception):
    """There is one already, where a new one was to be made."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a store says of an object.   changed_ms: Unix time of its last writing, by its clock"""

    name: str
    num_bytes: int
    changed_ms: int


class Bucket:
    """One store, from a prefix on. Thread-safe. Every method raises StoreError."""

    def __init__(self, url: str) -> None:
        """Connects to nothing yet.   Raises NoStore."""
        self.url = url
        self._store = open_store(url)

    def put(self, name: str, parts: "Sequence[ReadableBuffer]", *, new: bool = False) -> int:
        """An object of these bytes, one part after the other; their number.

        new  it must not be there yet: raises IsThere
        """
        num_bytes = sum(memoryview(part).nbytes for part in parts)
        mode = "create" if new else "overwrite"
        with said("put", name):
            in_parts = num_bytes > MULTIPART_BYTES and not new
            self._store.put(name, list(parts), mode=mode, use_multipart=in_parts)
        return num_bytes

    def get(self, name: str) -> memoryview:
        """All of it.   Raises NotThere."""
        with said("get", name):
            return memoryview(self._store.get(name).bytes())

    def head(self, name: str) -> Found:
        """Raises NotThere."""
        with said("head", name):
            return found_of(self._store.head(name))

    def list(self, folder: str) -> Iterator[Found]:
        """Every object below a folder, in no order."""
        with said("list", folder):
            for chunk in self._store.list(folder):
                yield from map(found_of, chunk)

    def delete(self, name: str) -> None:
        """It is gone; if it was before, that is as well."""
        try:
            with said("delete", name):
                self._store.delete(name)
        except NotThere:
            pass


def open_store(url: str) -> Any:
    """Raises NoStore, in words that name neither user nor password."""
    try:
        from obstore.exceptions import BaseError
        from obstore.store import LocalStore, from_url
    except ImportError:
        raise NoStore(MISSING_EXTRA) from None
    parts = urlsplit(url)
    try:
        if parts.scheme == "file":
            folder = Path(unquote(parts.path))
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            return LocalStore(folder)
        if parts.scheme == "memory":
            return from_url(url)
        # no client_options: they would put those of the environment (AWS_ALLOW_HTTP) out of force
        return from_url(url, retry_config={"max_retries": TRIES, "retry_timeout": PATIENCE})
    except (BaseError, ValueError, OSError) as error:
        raise NoStore(f"{parts.scheme}://{parts.hostname or ''}: {first_line(error)}") from error


@contextmanager
def said(what: str, name: str) -> Iterator[None]:
    """Whatever the library raises, in our words."""
    from obstore.exceptions import AlreadyExistsError, BaseError

    try:
        yield
    except AlreadyExistsError:
        raise IsThere(name) from None
    except FileNotFoundError as error:
        if "NoSuchBucket" in str(error):
            raise StoreError(f"{what} {name}: there is no such bucket") from error
        raise NotThere(name) from None
    except (BaseError, OSError, ValueError) as error:
        raise StoreError(f"{what} {name}: {first_line(error)}") from error


def found_of(meta: Any) -> Found:
    changed_ms = round(meta["last_modified"].timestamp() * 1000)
    return Found(meta["path"], meta["size"], changed_ms)


def first_line(error: Exception) -> str:
    """The rest is the library's own state."""
    return (str(error).splitlines() or [type(error).__name__])[0][:300]
