"""A file of named Arrow columns, which may differ in length and can be read individually.

Layout: one Arrow IPC stream per column, concatenated; then a JSON object, name -> [offset, bytes, checksum]; then the
length of that JSON, 8 bytes little-endian. Arrow's own file format is not used because reading one column of it
allocates the memory of all.

The checksum of a column is that of its bytes. The checksum of the JSON stands for the whole file: the writer returns
it, and whoever records the file keeps it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from io import BufferedReader
from pathlib import Path
from typing import cast

import pyarrow as pa

from ziggurat.core.digests import digest
from ziggurat.core.errors import DataError
from ziggurat.core.files import explained_writes
from ziggurat.core.sealed import declared
from ziggurat.core.untrusted import MAX_TEXT_BYTES, Damage, arrow_errors, opened, parse_json

STAGE_AGAIN = Damage(DataError, "run the same command again: it reads the rows of that part from the raw files again")
"""What the errors about a damaged staged file look like."""
_LENGTH_BYTES = 8


def write_columns(path: Path, columns: Mapping[str, pa.Array]) -> str:
    """Writes all columns to ``path``; the file is complete once this returns.

    Returns:
        The checksum of the file.

    Raises:
        DataError: the disk is full, or there is no permission.
    """
    index: dict[str, tuple[int, int, str]] = {}
    with explained_writes(path), pa.OSFile(str(path), "wb") as file:
        for name, column in columns.items():
            start = file.tell()
            batch = pa.record_batch([column], names=["column"])
            content = pa.BufferOutputStream()
            with pa.ipc.new_stream(content, batch.schema) as stream:
                stream.write_batch(batch)
            data = content.getvalue()
            file.write(data)
            index[name] = (start, data.size, digest(data))
        footer = json.dumps(index).encode()
        file.write(footer)
        file.write(len(footer).to_bytes(_LENGTH_BYTES, "little"))
    return digest(footer)


class ColumnFile:
    """Reads columns of a file that :func:`write_columns` wrote.

    Args:
        path: the file.
        checksum: what :func:`write_columns` returned.

    Raises:
        DataError: the file is missing, or is not that file.
    """

    def __init__(self, path: Path, checksum: str) -> None:
        self._path = path
        try:
            with opened(path, STAGE_AGAIN) as file, arrow_errors(path, STAGE_AGAIN):
                size = file.seek(-_LENGTH_BYTES, 2)
                length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
                if length > min(size, MAX_TEXT_BYTES):
                    raise STAGE_AGAIN.of(path, "is damaged: it does not end as it was written")
                file.seek(size - length)
                footer = file.read(length)
        except FileNotFoundError:
            raise STAGE_AGAIN.of(path, "is missing") from None
        if digest(footer) != checksum:
            raise STAGE_AGAIN.of(path, "is damaged: the list of its columns differs from its checksum")
        index = declared(dict[str, tuple[int, int, str]], parse_json(footer, path, STAGE_AGAIN), path, STAGE_AGAIN)
        self._index = index

    def read(self, name: str) -> pa.Array:
        """Reads one column; nothing else is read or allocated.

        Raises:
            DataError: the column is damaged.
        """
        data = self._read(name)
        with arrow_errors(self._where(name), STAGE_AGAIN):
            return pa.ipc.open_stream(data).read_next_batch().column(0)

    def check(self) -> None:
        """Compares every column with its checksum.

        Raises:
            DataError: a column is damaged.
        """
        for name in self._index:
            self._read(name)

    def _read(self, name: str) -> pa.Buffer:
        if name not in self._index:
            raise STAGE_AGAIN.of(self._path, f"has no column {name!r}")
        start, length, checksum = self._index[name]
        where = self._where(name)
        try:
            with opened(self._path, STAGE_AGAIN) as file, arrow_errors(where, STAGE_AGAIN):
                if not 0 <= start <= start + length <= file.seek(0, 2):
                    raise STAGE_AGAIN.of(where, "is damaged: it lies beyond the end of the file")
                file.seek(start)
                data = pa.allocate_buffer(length)
                complete = cast("BufferedReader", file).readinto(memoryview(data)) == length
        except FileNotFoundError:
            raise STAGE_AGAIN.of(self._path, "is missing") from None
        if not complete or digest(data) != checksum:
            raise STAGE_AGAIN.of(where, "is damaged: its content differs from its checksum")
        return data

    def _where(self, name: str) -> str:
        return f"{self._path}: column {name!r} (from byte {self._index[name][0]:,} on)"
