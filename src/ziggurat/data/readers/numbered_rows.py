"""Rows of files by their numbers, each file read once from front to back while one stretch of it is held."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ziggurat.data.readers.source_files import SourceFile

Lines = npt.NDArray[np.int64]

Stretch = tuple[Lines, pa.RecordBatch]
"""Consecutive rows of a file, one at least, and the line or row number of each, from 1, ascending."""


class NumberedRows:
    """Hands out rows by number.

    Args:
        files: what to read, in the order in which rows are going to be asked for.
        read: the stretches of a file, from its first row on.
    """

    def __init__(self, files: Sequence[SourceFile], read: Callable[[SourceFile], Iterator[Stretch]]) -> None:
        self._files = {str(file.path): file for file in files}
        self._read = read
        self._path = ""
        self._stretches: Iterator[Stretch] = iter(())
        self._current: Stretch | None = None

    def take(self, path: str, lines: Lines) -> list[pa.RecordBatch]:
        """The rows of one file with the numbers ``lines`` (ascending, beyond all that were taken before)."""
        if path != self._path:
            self._path, self._stretches, self._current = path, self._read(self._files[path]), None
        parts: list[pa.RecordBatch] = []
        while len(lines):
            if self._current is None:
                self._current = next(self._stretches)
            numbers, batch = self._current
            inside = int(np.searchsorted(lines, numbers[-1], side="right"))
            if inside:
                places = np.searchsorted(numbers, lines[:inside])
                parts.append(batch.take(pa.array(places)))
                lines = lines[inside:]
            if len(lines):
                self._current = None
        return parts
