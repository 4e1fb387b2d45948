"""Where refused rows go: to an error that stops the work, or to a file of JSON lines that names each of them."""

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
from ziggurat.data.readers.blocks import BadRow
from ziggurat.data.readers.rejection_reasons import kind_of, place_of, split_hint

_ROW_START = b'{"file": '

Policy = Literal["fail", "quarantine"]


class Quarantine:
    """Refused rows, counted by column and kind, and kept in ``path``.

    The file holds one JSON object a row: ``file, line, column, reason, text``. A file that is there already is gone on
    with: its rows are counted, and a last line that an interruption cut short is dropped. A preparation that goes on
    from a saved position calls :meth:`truncate_to` with the total it saved beside that position, so that rows it meets
    again are not written twice::

        quarantine.sync()
        saved = (position, quarantine.total)        # written down atomically by the caller
        ...                                         # interrupted here
        quarantine = Quarantine(path, "quarantine")
        quarantine.truncate_to(saved[1])

    Args:
        path: the JSON lines file; None only counts (policy ``quarantine``). It is made with the first refused row.
        policy: ``fail`` raises on the first refused row; ``quarantine`` keeps it and goes on.
        choice: how the user asks for ``quarantine``, for the hint of that error.

    Raises:
        DataError: the file cannot be read, or is not a quarantine file.
    """

    def __init__(self, path: Path | None, policy: Policy, choice: str = "set `on_bad_row: quarantine`") -> None:
        self.path = path
        self.policy: Policy = policy
        self.choice = choice
        self.total = 0
        self.counts: Counter[tuple[str | None, str]] = Counter()
        """(column, kind of refusal) -> rows."""
        self._stream: FileIO | None = None
        if path is not None and path.exists():
            self._recount(None)

    def add(self, rows: Sequence[BadRow]) -> None:
        """Refuse ``rows``.

        Raises:
            DataError: under policy ``fail``, for the first of them, naming file, line, column, reason and hint;
                under ``quarantine``, when the file cannot be written (full disk, no permission).
        """
        if not rows:
            return
        if self.policy == "fail":
            problem, hint = split_hint(rows[0].reason)
            raise DataError(
                f"{place_of(rows[0])}: {problem}",
                f"{hint or 'correct the row'}; or {self.choice} to set such rows aside and go on",
            )
        if self.path is not None:
            text = "".join(json.dumps(asdict(row), ensure_ascii=False) + "\n" for row in rows)
            with explained_writes(self.path):
                _write_all(self._opened(self.path), text.encode("utf-8", errors="backslashreplace"))
        self.total += len(rows)
        self.counts.update((row.column, kind_of(row.reason)) for row in rows)

    def truncate_to(self, count: int) -> None:
        """Keep the first ``count`` rows of the file and forget the others.

        Raises:
            DataError: the file holds fewer rows than that.
        """
        self.close()
        self.total, self.counts = 0, Counter()
        if self.path is not None and self.path.exists():
            self._recount(count)
        if self.total < count:
            raise DataError(
                f"{self.path}: holds {self.total} refused rows, {count} were counted when the work was interrupted",
                "prepare anew from the start",
            )

    def sync(self) -> None:
        """Flush the file to the device: the rows counted in ``total`` now outlive a crash."""
        if self._stream is not None and self.path is not None:
            with explained_writes(self.path):
                os.fsync(self._stream.fileno())

    def close(self) -> None:
        """Close the file; a later :meth:`add` opens it again."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def summary(self) -> list[str]:
        """One line per column and kind, the most frequent first: ``price: not a number: 3 rows``."""
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
            self._stream = FileIO(path, "ab")  # unbuffered: what was written is in the file
        return self._stream

    def _recount(self, limit: int | None) -> None:
        """Count the first ``limit`` whole rows of the file (all when None) and cut off whatever follows them."""
        assert self.path is not None
        self.total, self.counts, kept_bytes = 0, Counter(), 0
        with explained_writes(self.path), self.path.open("r+b") as stream:
            for line in stream:
                if self.total == limit or (not line.endswith(b"\n") and line.startswith(_ROW_START[: len(line)])):
                    break
                try:
                    row = json.loads(line)
                    self.counts[row["column"], kind_of(row["reason"])] += 1
                except (ValueError, TypeError, KeyError) as error:
                    raise DataError(
                        f"{self.path}, line {self.total + 1}: not a row of a quarantine file",
                        "move the file away, or write the quarantine elsewhere",
                    ) from error
                self.total += 1
                kept_bytes += len(line)
            stream.truncate(kept_bytes)


@contextlib.contextmanager
def quarantine_of_output(path: Path, policy: Policy, choice: str) -> Generator[Quarantine]:
    """Refused rows of work that leaves an output whole or not at all, and the file at ``path`` likewise.

    On success the file holds the rows refused, or is gone when there were none; on failure one that lay there before
    stays as it was. ``policy`` and ``choice`` are those of :class:`Quarantine`.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    part.unlink(missing_ok=True)
    try:
        with Quarantine(part, policy, choice) as quarantine:
            yield quarantine
            quarantine.sync()
        with explained_writes(path):
            if quarantine.total:
                part.replace(path)
            else:
                path.unlink(missing_ok=True)
    finally:
        part.unlink(missing_ok=True)


def _write_all(stream: FileIO, data: bytes) -> None:
    """Write ``data``, in several goes where the device takes less at a time."""
    rest = memoryview(data)
    while rest:
        rest = rest[stream.write(rest) :]
