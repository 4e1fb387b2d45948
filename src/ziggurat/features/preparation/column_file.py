"""A file of named Arrow columns, which may differ in length and can be read individually.

Layout: one Arrow IPC stream per column, concatenated; then a JSON object, name -> [offset, bytes]; then the length of
that JSON, 8 bytes little-endian. Arrow's own file format is not used because reading one column of it allocates the
memory of all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import pyarrow as pa

from ziggurat.core.files import explained_writes

_LENGTH_BYTES = 8


def write_columns(path: Path, columns: Mapping[str, pa.Array]) -> None:
    """Writes all columns to ``path``; the file is complete once this returns.

    Raises:
        DataError: the disk is full, or there is no permission.
    """
    index: dict[str, tuple[int, int]] = {}
    with explained_writes(path), pa.OSFile(str(path), "wb") as file:
        for name, column in columns.items():
            start = file.tell()
            batch = pa.record_batch([column], names=["column"])
            with pa.ipc.new_stream(file, batch.schema) as stream:
                stream.write_batch(batch)
            index[name] = (start, file.tell() - start)
        footer = json.dumps(index).encode()
        file.write(footer)
        file.write(len(footer).to_bytes(_LENGTH_BYTES, "little"))


class ColumnFile:
    """Reads columns of a file that :func:`write_columns` wrote."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with pa.OSFile(str(path)) as file:
            size = cast("int", file.size())
            file.seek(size - _LENGTH_BYTES)
            footer_bytes = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            file.seek(size - _LENGTH_BYTES - footer_bytes)
            self._index: dict[str, tuple[int, int]] = json.loads(file.read(footer_bytes))

    def read(self, name: str) -> pa.Array:
        """Reads one column; nothing else is read or allocated."""
        start, length = self._index[name]
        with pa.OSFile(str(self._path)) as file:
            file.seek(start)
            return pa.ipc.open_stream(file.read_buffer(length)).read_next_batch().column(0)
