"""A table as the updater writes it: finds out which rows changed, appends them to a log, or writes all rows anew.

Shape legend: R rows of the table, U rows that are compared or written, D dim, W bytes of a row.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ziggurat.core.digests import digest_of_parts
from ziggurat.core.files import explained_writes, sync
from ziggurat.serving.artefact.manifest import TableEntry
from ziggurat.serving.artefact.row_codec import Bytes, Precision, encode
from ziggurat.serving.tables.inputs import Ints
from ziggurat.serving.tables.overlay import Overlay, index_of
from ziggurat.serving.versions.folder import VersionFolder
from ziggurat.serving.versions.overlays import id_type, map_log, mapped, share_index
from ziggurat.serving.versions.record import TableRecord

_CHUNK_BYTES = 16 << 20
LOG_SHARE = 0.5
"""A log of this share of the bytes of a table's file makes the table be written anew."""
_LEAST_LOG_BYTES = 1 << 20


class TableState:
    """The newest version of a table.

    Args:
        folder: the versions.
        number: the number of the table, for the names of its files.
        entry: the table.
        precision: how its rows are stored.
        exported: its file in the export.
        record: its rows in the newest version.

    Attributes:
        record: its rows in the newest version.
        written: bytes that were handed to the file system, also by writes that failed.
    """

    def __init__(
        self,
        folder: VersionFolder,
        number: int,
        entry: TableEntry,
        precision: Precision,
        exported: Path,
        record: TableRecord,
    ) -> None:
        self._folder, self._name, self.entry = folder, f"t{number:04d}", entry
        self._precision: Precision = precision
        self._exported, self.layout = exported, entry.layout(precision)
        self._ids = np.empty(0, np.int64)
        self._overlay: Overlay | None = None
        self.written = 0
        self.open(record)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row and its id in the log."""
        return self.layout.width + id_type(self.entry.rows).itemsize

    @property
    def is_due(self) -> bool:
        """Whether the table should be written anew: its log has grown long."""
        size = self.record.log_rows * self.row_bytes
        return size > max(_LEAST_LOG_BYTES, LOG_SHARE * self.layout.bytes)

    def open(self, record: TableRecord) -> None:
        """Takes the rows of a version as the newest."""
        self.record = record
        base = self._folder.root / record.base if record.base else self._exported
        self._base = mapped(base, self.layout.bytes)
        self._overlay, self._ids = None, np.empty(0, np.int64)
        if record.log:
            rows_LW, ids_L = map_log(self._folder, self.entry, self._precision, record)
            self._ids = ids_L.astype(np.int64)
            index, places = index_of(self._ids, self.entry.rows)
            self._overlay = Overlay(index, places, rows_LW)
            share_index(self._folder, record, index, places)

    def served(self, ids_U: Ints) -> Bytes:
        """Returns the rows (U, W) of the newest version."""
        rows_UW = self.layout.gather(self._base, ids_U)
        if self._overlay is not None:
            there, changed = self._overlay.find(ids_U)
            rows_UW[there] = changed
        return rows_UW

    def differing(self, table_RD: Tensor, ids_U: Ints | None) -> tuple[Ints, Bytes]:
        """Returns the ids and rows that differ from the newest version.

        Args:
            table_RD: the table of a checkpoint, float32.
            ids_U: the rows to compare; None: all.

        Raises:
            ConfigError: a number cannot be stored at the export's precision; the message names the table and the row.
        """
        ids = [np.empty(0, np.int64)]
        rows = [np.empty((0, self.layout.width), np.uint8)]
        for some in self._chunks(ids_U):
            values_UD = table_RD[torch.from_numpy(some)].numpy()
            encoded = encode(values_UD, self._precision, f"table {self.entry.name!r}")
            differs = (encoded != self.served(some)).any(axis=1)
            ids.append(some[differs])
            rows.append(encoded[differs])
        return np.concatenate(ids), np.concatenate(rows)

    def append(self, ids_U: Ints, rows_UW: Bytes, version: int) -> TableRecord:
        """Appends rows to the log, and returns the table of a version that has them. It is the newest once it is
        opened.

        Raises:
            DataError: the disk is full.
        """
        before = self.record
        name, ids = before.log or f"{self._name}.{version:08d}", ids_U.astype(id_type(self.entry.rows))
        for suffix, data, at in (
            ("log", rows_UW, before.log_rows * self.layout.width),
            ("ids", ids, before.log_rows * ids.itemsize),
        ):
            path = self._folder.root / f"{name}.{suffix}"
            with explained_writes(path):
                for size in _write_at(path, at, np.ascontiguousarray(data).tobytes()):
                    self.written += size
        return TableRecord(
            before.base,
            name,
            before.log_rows + len(ids),
            len(np.union1d(self._ids, ids_U)),
            len(ids),
            digest_of_parts([ids, np.ascontiguousarray(rows_UW)]),
        )

    def compact(self, version: int) -> TableRecord:
        """Writes all rows of the newest version into a file, and returns the table of a version that has no log.

        Raises:
            DataError: the disk is full.
        """
        path = self._folder.root / f"{self._name}.{version:08d}.rows"
        with explained_writes(path):
            try:
                with path.open("wb") as file:
                    for some in self._chunks(None):
                        before = file.tell()
                        self.layout.write(file, self.served(some))
                        self.written += file.tell() - before
                sync(path)
            except BaseException:
                path.unlink(missing_ok=True)
                raise
        return TableRecord(path.name)

    def _chunks(self, ids_U: Ints | None) -> Iterator[Ints]:
        """Yields ids in parts; without ``ids_U`` all of the table, in parts that the layout can write."""
        step = max(1, _CHUNK_BYTES // (4 * self.entry.dim))
        step = -(-step // self.layout.per_block) * self.layout.per_block
        for start in range(0, self.entry.rows if ids_U is None else len(ids_U), step):
            if ids_U is None:
                yield np.arange(start, min(start + step, self.entry.rows))
            else:
                yield ids_U[start : start + step]


def _write_at(path: Path, at: int, data: bytes) -> Iterator[int]:
    """Writes and flushes data at a place of a file, and removes what was behind; nothing is left if that fails.

    Yields:
        How many bytes were written, after each part.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    try:
        os.ftruncate(descriptor, at)
        try:
            done = 0
            while done < len(data):
                size = os.pwrite(descriptor, memoryview(data)[done : done + (1 << 30)], at + done)
                done += size
                yield size
            os.fsync(descriptor)
        except BaseException:
            os.ftruncate(descriptor, at)
            raise
    finally:
        os.close(descriptor)
