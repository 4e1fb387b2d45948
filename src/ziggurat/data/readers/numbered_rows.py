"""Looks up rows of files by row number, reading each file once from front to back and holding one batch in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ziggurat.data.readers.source_files import SourceFile

LineNumbers = npt.NDArray[np.int64]

NumberedBatch = tuple[LineNumbers, pa.RecordBatch]
"""At least one consecutive row of a file: the line or row numbers, ascending and counted from 1, and the rows."""


class NumberedRows:
    """Looks up rows by number.

    Args:
        files: the files to read, in the order in which their rows will be requested.
        read: yields the rows of a file in batches, from its first row on.
    """

    def __init__(self, files: Sequence[SourceFile], read: Callable[[SourceFile], Iterator[NumberedBatch]]) -> None:
        self._files = {str(file.path): file for file in files}
        self._read = read
        self._path = ""
        self._batches: Iterator[NumberedBatch] = iter(())
        self._current: NumberedBatch | None = None

    def take(self, path: str, lines: LineNumbers) -> list[pa.RecordBatch]:
        """Returns the rows of one file with the numbers ``lines``, which ascend and exceed all numbers taken before."""
        if path != self._path:
            self._path, self._batches, self._current = path, self._read(self._files[path]), None
        parts: list[pa.RecordBatch] = []
        while len(lines):
            if self._current is None:
                self._current = next(self._batches)
            numbers, batch = self._current
            count = int(np.searchsorted(lines, numbers[-1], side="right"))
            if count:
                parts.append(_rows(batch, numbers, lines[:count]))
                lines = lines[count:]
            if len(lines):
                self._current = None
        return parts


def _rows(batch: pa.RecordBatch, numbers: LineNumbers, wanted: LineNumbers) -> pa.RecordBatch:
    """Returns the rows of a batch with the numbers ``wanted``; without copies, if no row between them is left out."""
    first, last = np.searchsorted(numbers, wanted[[0, -1]])
    if last - first + 1 == len(wanted):
        return batch.slice(first, len(wanted))
    return batch.take(pa.array(np.searchsorted(numbers, wanted)))
