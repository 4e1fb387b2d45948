"""Rows of a table in memory: the file is mapped, or copied into memory of its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from ziggurat.serving.artefact.manifest import TableEntry
from ziggurat.serving.artefact.row_codec import Precision, decode

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]


class MappedRows:
    """The rows of a table's file, mapped into memory, which processes on one host share.

    Args:
        path: the file.
        entry: the table.
        precision: how its rows are stored.
    """

    def __init__(self, path: Path, entry: TableEntry, precision: Precision) -> None:
        self._dim = entry.dim
        self._precision: Precision = precision
        self._layout = entry.layout(precision)
        self._mapped = np.memmap(path, np.uint8, "r", shape=(self._layout.bytes,))

    def read(self, ids_L: Ints) -> Floats:
        """Returns rows (L, dim) for ids in any order."""
        return decode(self._layout.gather(self._mapped, ids_L), self._dim, self._precision)
