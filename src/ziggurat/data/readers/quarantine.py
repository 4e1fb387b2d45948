"""Handles rejected rows: either the first one raises an error, or all are recorded in a JSON lines file."""

from __future__ import annotations

import contextlib
import json
import os
from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import asdict
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Literal

from ziggurat.core.errors import DataError
from ziggurat.core.files import explained_writes
from ziggurat.core.temporary import pending_file
from ziggurat.data.readers.blocks import BadRow
from ziggurat.data.readers.rejection_reasons import reason_kind, row_location, split_hint

_ROW_START = b'{"file": '

Policy = Literal["fail", "quarantine"]


class Quarantine:
    """Rejected rows, counted by column and kind, and recorded in ``path``.

    The file holds one JSON object per row: ``file, line, column, reason, text``. An existing file is continued: its
    rows are counted, and a last line truncated by an interruption is dropped. A preparation that resumes from a saved
    position calls :meth:`truncate_to` with the total that it saved with that position, so that rows it reads again
    are not recorded twice::

        quarantine.sync()
        saved = (position, quarantine.total)        # saved atomically by the caller
        ...                                         # interrupted here
        quarantine = Quarantine(path, "quarantine")
        quarantine.truncate_to(saved[1])

    Args:
        path: the JSON lines file, created with the first rejected row; None counts without recording (policy
            ``quarantine``).
        policy: ``fail`` raises on the first rejected row; ``quarantine`` records it and continues.
        choice: how the user selects ``quarantine``, for the hint of that error.
        target: the path to name in errors, if ``path`` is that of a temporary file.

    Raises:
        DataError: the file cannot be read, or is not a quarantine file.
    """

    def __init__(
        self,
        path: Path | None,
        policy: Policy,
        choice: str = "set `on_bad_row: quarantine`",
        target: Path | None = None,
    ) -> None:
        self.path = path
        self._target = target or path or Path()
        self.policy: Policy = policy
        self.choice = choice
        self.total = 0
        self.counts: Counter[tuple[str | None, str]] = Counter()
        """(column, kind of rejection) -> number of rows."""
        self._stream: FileIO | None = None
        if path is not None and path.exists():
            self._recount(None)

    def add(self, rows: Sequence[BadRow]) -> None:
        """Records rejected rows, or raises an error for the first of them, depending on the policy.

        Raises:
            DataError: under policy ``fail``, for the first row, with file, line, column, reason and hint; under
                ``quarantine``, if the file cannot be written (full disk, no permission).
        """
        if not rows:
            return
        if self.policy == "fail":
            problem, hint = split_hint(rows[0].reason)
            raise DataError(
                f"{row_location(rows[0])}: {problem}",
                f"{hint or 'correct the row'}; or {self.choice} to set such rows aside and go on",
            )
        if self.path is not None:
            with explained_writes(self._target):
                _write_all(self._opened(self.path), quarantine_lines(rows))
        self.total += len(rows)
        self.counts.update((row.column, reason_kind(row.reason)) for row in rows)

    def truncate_to(self, count: int) -> None:
        """Keeps the first ``count`` rows of the file and removes the others.

        Raises:
            DataError: the file holds fewer than ``count`` rows.
        """
        self.close()
        self.total, self.counts = 0, Counter()
        if self.path is not None and self.path.exists():
            self._recount(count)
        if self.total < count:
            raise DataError(
                f"{self._target}: holds {self.total} rejected rows, {count} were counted when the work was interrupted",
                "prepare anew from the start",
            )

    def sync(self) -> None:
        """Flushes the file to the device, so that the rows counted in ``total`` survive a crash."""
        if self._stream is not None and self.path is not None:
            with explained_writes(self._target):
                os.fsync(self._stream.fileno())

    def close(self) -> None:
        """Closes the file; a later :meth:`add` reopens it."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def summary(self) -> list[str]:
        """Returns one line per column and kind, most frequent first: ``price: not a number: 3 rows``."""
        ordered = sorted(self.counts.items(), key=lambda item: (-item[1], item[0][0] or "", item[0][1]))
        return [
            f"{column or 'whole row'}: {kind}: {count} row{'s' if count > 1 else ''}"
            for (column, kind), count in ordered
        ]

    def __enter__(self) -> Quarantine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _opened(self, path: Path) -> FileIO:
        if self._stream is None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._stream = FileIO(path, "ab")  # unbuffered: written rows are in the file at once
        return self._stream

    def _recount(self, limit: int | None) -> None:
        """Counts the first ``limit`` complete rows of the file (None: all) and truncates the file after them."""
        assert self.path is not None
        self.total, self.counts, kept_bytes = 0, Counter(), 0
        with explained_writes(self._target), self.path.open("r+b") as stream:
            for line in stream:
                if self.total == limit or (not line.endswith(b"\n") and line.startswith(_ROW_START[: len(line)])):
                    break
                try:
                    row = json.loads(line)
                    self.counts[row["column"], reason_kind(row["reason"])] += 1
                except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
                    raise DataError(
                        f"{self._target}, line {self.total + 1}: not a row of a quarantine file",
                        "move the file away, or write the quarantine elsewhere",
                    ) from error
                self.total += 1
                kept_bytes += len(line)
            stream.truncate(kept_bytes)


@contextlib.contextmanager
def output_quarantine(path: Path, policy: Policy, choice: str) -> Generator[Quarantine]:
    """A quarantine for work whose output appears only when complete; so does the quarantine file at ``path``.

    On success the file holds the rejected rows, or is removed if there were none. On failure an existing file remains
    unchanged. ``policy`` and ``choice`` are those of :class:`Quarantine`.
    """
    with pending_file(path) as pending:
        with Quarantine(pending.path, policy, choice, path) as quarantine:
            yield quarantine
        if quarantine.total:
            pending.put_in_place()
        else:
            path.unlink(missing_ok=True)


def quarantine_lines(rows: Sequence[BadRow]) -> bytes:
    """Returns the lines of a quarantine file for these rows."""
    text = "".join(json.dumps(asdict(row), ensure_ascii=False) + "\n" for row in rows)
    return text.encode("utf-8", errors="backslashreplace")


def _write_all(stream: FileIO, data: bytes) -> None:
    """Writes all of ``data``, repeating the call when the device accepts only part of it."""
    rest = memoryview(data)
    while rest:
        rest = rest[stream.write(rest) :]
