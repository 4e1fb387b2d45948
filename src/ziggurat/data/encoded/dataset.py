"""The encoded dataset on disk: Arrow IPC files of fixed-size blocks, one folder per split, and a manifest.

Layout::

    manifest.json                 written last: schema, files, blocks and checksums (``data.encoded.manifest``)
    encoders/                     the fitted transform (written and read by ``features``)
    statistics.json|.safetensors  per-feature and per-table statistics (``core.statistics``)
    train/00000.arrow ...         uncompressed Arrow IPC files; each record batch is a block of ``block_rows`` rows
    validation/ test/

Columns, without nulls: dense float32; categorical int32 (int64 for tables of 2^31 rows or more); bags and sequences
``list<int32|int64>``; labels float32 under :func:`~ziggurat.core.schema.label_column`, their own weights under
:func:`~ziggurat.core.schema.count_column`; ``@weight`` float32; ``@group`` int64; ``@time``. pyarrow, polars and DuckDB
can open the files directly.

A block is compared with its checksum when a process first reads it, in the thread that reads it, and again if the file
has changed since.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ziggurat.core.errors import DataError, shorten, unknown_name
from ziggurat.core.files import explained_writes, sync
from ziggurat.core.schema import GROUP_COLUMN, TIME_COLUMN, WEIGHT_COLUMN, Schema, count_column, label_column
from ziggurat.core.statistics import DatasetStatistics
from ziggurat.core.untrusted import opened
from ziggurat.data.encoded.block_checksum import block_checksum
from ziggurat.data.encoded.manifest import (
    DAMAGED,
    ENCODERS,
    FILE_BLOCKS,
    STATISTICS,
    DatasetManifest,
    manifest,
    read_manifest,
    write_manifest,
)
from ziggurat.data.encoded.manifest import SPLITS as SPLITS
from ziggurat.data.encoded.manifest import Split as Split

BLOCK_ROWS = 65_536
_PADDING_BYTES = 64


def arrow_schema(schema: Schema) -> pa.Schema:
    """Returns the Arrow schema of the files of a dataset with this ``schema``."""

    def ids(feature: str) -> pa.DataType:
        return pa.int64() if schema.rows[schema.tables[feature]] >= 2**31 else pa.int32()

    fields = [pa.field(name, pa.float32()) for name in schema.dense]
    fields += [pa.field(name, ids(name)) for name in schema.categorical]
    fields += [pa.field(name, pa.list_(ids(name))) for name in (*schema.bags, *schema.sequences)]
    fields += [pa.field(label_column(name), pa.float32()) for name in schema.labels]
    fields += [pa.field(count_column(name), pa.float32()) for name in schema.counted]
    if schema.has_weight:
        fields.append(pa.field(WEIGHT_COLUMN, pa.float32()))
    if schema.has_group:
        fields.append(pa.field(GROUP_COLUMN, pa.int64()))
    if schema.has_time:
        fields.append(pa.field(TIME_COLUMN, pa.int64()))
    return pa.schema([field.with_nullable(False) for field in fields])


class DatasetWriter:
    """Appends encoded rows to the splits of a dataset folder, regrouped into blocks of ``block_rows``.

    The folder becomes a dataset when :meth:`finish` writes the manifest; a folder without one is ignored and rewritten.
    """

    def __init__(self, folder: Path, schema: Schema, block_rows: int = BLOCK_ROWS) -> None:
        self._folder = folder
        self._schema = schema
        self._arrow = arrow_schema(schema)
        self._block_rows = block_rows
        self._splits = {split: _SplitWriter(folder / split, self._arrow, block_rows) for split in SPLITS}

    def append(self, split: Split, rows: pa.RecordBatch) -> None:
        """Appends rows to a split; the columns must be those of :func:`arrow_schema`, in any order."""
        self._splits[split].append(rows.select(self._arrow.names).cast(self._arrow))

    def close(self) -> dict[str, Any]:
        """Closes the files and makes them durable; returns the ``splits`` entry of the manifest."""
        return {split: writer.finish() for split, writer in self._splits.items()}

    def finish(self, fingerprint: str, details: dict[str, Any]) -> None:
        """Closes the files, makes them durable, and writes the manifest.

        Args:
            fingerprint: identifies the config and the raw files that the dataset was made from.
            details: further JSON to store in the manifest (source files, quarantined rows, ...).
        """
        content = manifest(fingerprint, self._schema, self._block_rows, self.close(), details, {})
        write_manifest(self._folder, content)


def write_split_file(
    path: Path, schema: Schema, block_rows: int, rows: Iterable[pa.RecordBatch], scratch: Path
) -> list[str]:
    """Writes a single file of a split, byte for byte the file that :class:`DatasetWriter` would have written.

    Args:
        path: the path of the file in the dataset; it appears there only when complete.
        schema: the schema of the dataset.
        block_rows: rows per block.
        rows: the rows of the file, at most ``FILE_BLOCKS`` blocks; columns as for :meth:`DatasetWriter.append`.
        scratch: a folder on the same filesystem that nothing else uses.

    Returns:
        The checksums of its blocks.
    """
    arrow = arrow_schema(schema)
    writer = _SplitWriter(scratch, arrow, block_rows)
    for batch in rows:
        writer.append(batch.select(arrow.names).cast(arrow))
    (written,) = writer.finish()["files"]
    with explained_writes(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        (scratch / written["name"]).replace(path)
        sync(path.parent)
    return written["checksums"]


class _SplitWriter:
    def __init__(self, folder: Path, schema: pa.Schema, block_rows: int) -> None:
        self._folder = folder
        self._schema = schema
        self._block_rows = block_rows
        self._pending: list[pa.RecordBatch] = []
        self._pending_rows = 0
        self._files: list[dict[str, Any]] = []
        self._writer: pa.RecordBatchFileWriter | None = None

    def append(self, rows: pa.RecordBatch) -> None:
        self._pending.append(rows)
        self._pending_rows += rows.num_rows
        while self._pending_rows >= self._block_rows:
            self._write_block(self._block_rows)

    def finish(self) -> dict[str, Any]:
        if self._pending_rows:
            self._write_block(self._pending_rows)
        self._close_file()
        return {"rows": sum(sum(file["blocks"]) for file in self._files), "files": self._files}

    def _write_block(self, rows: int) -> None:
        merged = pa.concat_batches(self._pending)
        block, rest = merged.slice(0, rows), merged.slice(rows)
        self._pending, self._pending_rows = ([rest], rest.num_rows) if rest.num_rows else ([], 0)
        block = _compact(block)
        with explained_writes(self._folder):
            self._open_file().write_batch(block)
        self._files[-1]["blocks"].append(block.num_rows)
        self._files[-1]["checksums"].append(block_checksum(block))
        if len(self._files[-1]["blocks"]) == FILE_BLOCKS:
            self._close_file()

    def _open_file(self) -> Any:
        if self._writer is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            name = f"{len(self._files):05d}.arrow"
            self._writer = pa.ipc.new_file(str(self._folder / name), self._schema)
            self._files.append({"name": name, "blocks": [], "checksums": []})
        return self._writer

    def _close_file(self) -> None:
        if self._writer is not None:
            path = self._folder / self._files[-1]["name"]
            with explained_writes(path):
                self._writer.close()
                sync(path)
            self._writer = None


def _compact(block: pa.RecordBatch) -> pa.RecordBatch:
    """Copies columns of ``block`` that are slices, so that no data of their parents gets into the file.

    Arrow pads number columns to a multiple of 64 bytes, with whatever the parent of a slice holds there.
    """
    padded = block.num_rows % _PADDING_BYTES != 0
    order = pa.array(np.arange(block.num_rows))
    columns = [column.take(order) if padded or pa.types.is_list(column.type) else column for column in block.columns]
    return pa.RecordBatch.from_arrays(columns, schema=block.schema)


_FileState = tuple[int, int, int, int]
"""Device, number, size and time of modification of a file: it is another one, or was written to, if these differ."""
_Checked = dict[int, tuple[_FileState, str | None]]
"""Block -> the file and the checksum with which it was found intact."""


@dataclass(frozen=True, slots=True)
class SplitBlocks:
    """The blocks of one split, in file order, opened as memory maps on demand.

    Attributes:
        folder: the split's folder.
        blocks: (file name, index in the file, number of rows) of each block.
        schema: the columns that every block must have; None if that is not to be checked.
        checksums: the checksum of each block; None for a dataset of a version without them.
        checked: which blocks were found intact before; shared by all objects of the split.
    """

    folder: Path
    blocks: tuple[tuple[str, int, int], ...]
    schema: pa.Schema | None = None
    checksums: tuple[str, ...] | None = None
    checked: _Checked = field(default_factory=_Checked, compare=False, repr=False)

    @property
    def rows(self) -> int:
        return sum(self.sizes)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of rows in each block."""
        return tuple(rows for _, _, rows in self.blocks)

    def read(self, block: int) -> pa.RecordBatch:
        """Returns a zero-copy view of one block.

        It is compared with its checksum unless that was done before and the file has not changed since. Comparing it in
        every epoch would cost a few percent of the loader's time, to find what a device garbles between two reads.

        Raises:
            DataError: the file is missing, truncated or damaged, or differs from the manifest.
        """
        name, index, rows = self.blocks[block]
        path = self.folder / name
        if not self.folder.is_dir():
            raise DataError(
                f"{self.folder}: the rows of this split are not here: a run fed by readers copies no training rows",
                "name the folder of the whole dataset: --prepared DIR",
            )
        try:
            with opened(path, DAMAGED) as file:
                state = _state(file.fileno()), None if self.checksums is None else self.checksums[block]
                mapped = pa.memory_map(f"/proc/self/fd/{file.fileno()}")  # this very file; blocks keep no descriptor
            batch = pa.ipc.open_file(mapped).get_batch(index)
            if batch.num_rows != rows:
                raise DAMAGED.of(path, f"block {index} holds {batch.num_rows} rows, the manifest says {rows}")
            if self.checked.get(block) != state:
                fault = self._fault(block, batch)
                if fault is not None:
                    raise DAMAGED.of(path, f"block {index} (from byte {_first_byte(batch, mapped):,} on) {fault}")
                self.checked[block] = state
        except FileNotFoundError:
            raise DAMAGED.of(path, "is missing") from None
        except DataError:
            raise
        except (pa.ArrowException, OSError, EOFError, ValueError) as error:
            raise DAMAGED.of(path, f"block {index} cannot be read: {str(error)[:200]}") from None
        return batch

    def _fault(self, block: int, batch: pa.RecordBatch) -> str | None:
        """Returns how a block differs from what was written; None if it does not.

        Raises:
            ArrowInvalid: its columns are not even consistent.
        """
        if self.schema is not None and not batch.schema.equals(self.schema):
            return f"has other columns than the manifest: {shorten(str(batch.schema), 200)}"
        batch.validate(full=self.checksums is None)
        if any(column.null_count for column in batch.columns):
            return "has empty cells, which no encoded row has"
        if self.checksums is not None and block_checksum(batch) != self.checksums[block]:
            return "is damaged: its content differs from its checksum"
        return None


class Dataset:
    """A prepared dataset folder, opened for reading.

    Attributes:
        manifest: the values of ``manifest.json``, with the checksum that they carry.
        schema: the schema of the encoded rows.

    Raises:
        DataError: the folder holds no complete dataset, a damaged manifest, or another format version.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.manifest: dict[str, Any]
        self._stored: DatasetManifest
        self.manifest, self._stored = read_manifest(self.folder)
        self.schema = self._stored.schema
        self._checked: dict[Split, _Checked] = {split: {} for split in SPLITS}

    @property
    def fingerprint(self) -> str:
        return self._stored.fingerprint

    @property
    def format_version(self) -> int:
        """The version of the folder's format; 1 has no checksums."""
        return self._stored.format_version

    @property
    def quarantined_rows(self) -> int:
        """The number of rows that preparation rejected."""
        return self._stored.quarantined.rows

    def checksum(self, part: str) -> str | None:
        """Returns the checksum of ``encoders`` or ``statistics``; None if the manifest has none.

        Raises:
            ConfigError: there is no such part.
        """
        parts = (ENCODERS, STATISTICS)
        if part not in parts:
            raise unknown_name("part of a dataset with a checksum", part, parts)
        return self._stored.checksums.get(part)

    def statistics(self) -> DatasetStatistics:
        """Returns the statistics of the training rows.

        Raises:
            DataError: they are missing, damaged, or those of another dataset.
        """
        return DatasetStatistics.load(self.folder, self.checksum(STATISTICS))

    def split(self, name: Split) -> SplitBlocks:
        """Returns the blocks of ``train``, ``validation`` or ``test`` (possibly none).

        Raises:
            ConfigError: there is no such split.
            DataError: its folder is a symbolic link.
        """
        if name not in SPLITS:
            raise unknown_name("split", name, SPLITS)
        if (self.folder / name).is_symlink():
            raise DAMAGED.of(self.folder / name, "is a symbolic link, which is not followed")
        stored = self._stored.splits[name]
        blocks = tuple((file.name, i, rows) for file in stored.files for i, rows in enumerate(file.blocks))
        return SplitBlocks(self.folder / name, blocks, arrow_schema(self.schema), stored.checksums, self._checked[name])


def _state(descriptor: int) -> _FileState:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _first_byte(batch: pa.RecordBatch, mapped: pa.MemoryMappedFile) -> int:
    """Returns where in the file the first buffer of a block is, for messages."""
    mapped.seek(0)
    start = mapped.read_buffer(1).address
    addresses = [buffer.address for column in batch.columns for buffer in column.buffers() if buffer is not None]
    return min(addresses, default=start) - start
