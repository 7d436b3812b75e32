"""What a batch has done: its two files of rows, and the counts that follow from them.

A file is named in the batch before it is there, so that whoever goes on knows of it.
"""

import time
from threading import Lock
from typing import Any, Final

from ingest.batches.record import Batch, Books
from ingest.batches.rows import Row, Rows, row_id
from ingest.batches.shelf import FileRecord, new_id

OUTPUT: Final = "output"
ERROR: Final = "error"


class Results:
    """Written by the batch's driver alone, from any of its threads."""

    def __init__(self, books: Books, tenant: str, batch: Batch) -> None:
        self.books, self.tenant, self.batch = books, tenant, batch
        self.done: set[int] = set()  # lines that have a row
        self.files: dict[str, Rows] = {}
        self.is_saved = True
        self._lock = Lock()

    def recover(self) -> None:
        """Reads the rows that are there. The counts of the batch are those of its rows."""
        batch = self.batch
        batch.completed = batch.failed = 0
        batch.prompt_tokens = batch.cached_tokens = batch.output_tokens = 0
        for kind in (OUTPUT, ERROR):
            if getattr(batch, f"{kind}_file_id") is not None:
                for row in self._file(kind).recover():
                    self._count(kind, row)
        self.save()

    def add(self, number: int, custom_id: str, *, response: Any = None, error: Any = None) -> None:
        """The row of a line; what is no 200 goes into the error file. Raises OSError: not there."""
        is_good = error is None and response["status_code"] == 200
        kind = OUTPUT if is_good else ERROR
        name = row_id(self.batch.id, number)
        row = {"id": name, "custom_id": custom_id, "response": response, "error": error}
        with self._lock:
            assert number not in self.done, number
            self._count(kind, self._file(kind).add(row))

    def save(self) -> None:
        """What GET shows; it may be older than the rows by a moment."""
        with self._lock:
            self.books.write(self.tenant, self.batch, durable=False)
            self.is_saved = True

    def close(self) -> None:
        """All rows are on the disk when this returns."""
        while self.files:
            self.files.popitem()[1].close()

    def _count(self, kind: str, row: Row) -> None:
        batch = self.batch
        self.done.add(row.line)
        self.is_saved = False
        if kind == ERROR:
            batch.failed += 1
            return
        batch.completed += 1
        if row.usage is not None:
            prompt, cached, output = row.usage.counts
            batch.prompt_tokens += prompt
            batch.cached_tokens += cached
            batch.output_tokens += output

    def _file(self, kind: str) -> Rows:
        rows = self.files.get(kind)
        return rows if rows is not None else self._open(kind)

    def _open(self, kind: str) -> Rows:
        batch, field = self.batch, f"{kind}_file_id"
        file_id = getattr(batch, field)
        if file_id is None:
            file_id = new_id("file-")
            setattr(batch, field, file_id)
            self.books.write(self.tenant, batch)
        if self.books.shelf.record(self.tenant, file_id) is None:
            self.books.shelf.begin(self.tenant, self._record(file_id, kind))
        rows = self.files[kind] = Rows(self.books.shelf.path(self.tenant, file_id))
        return rows

    def _record(self, file_id: str, kind: str) -> FileRecord:
        now_s = int(time.time())
        return FileRecord(
            id=file_id,
            filename=f"{self.batch.id}_{kind}.jsonl",
            purpose="batch_output",
            created_at=now_s,
            expires_at=now_s + self.batch.kept_s,
        )
