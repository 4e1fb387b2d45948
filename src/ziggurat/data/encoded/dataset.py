"""The encoded dataset on disk: Arrow IPC files of fixed-size blocks, one folder per split, and a manifest.

Layout (format version 1)::

    manifest.json                 written last: schema, rows and files of each split, fingerprint of the inputs
    encoders/                     the fitted transform (written and read by ``features``)
    statistics.json|.safetensors  per-feature and per-table statistics (``core.statistics``)
    train/00000.arrow ...         uncompressed Arrow IPC files; each record batch is a block of ``block_rows`` rows
    validation/ test/

Columns, without nulls: dense float32; categorical int32 (int64 for tables of 2^31 rows or more); bags and sequences
``list<int32|int64>``; labels float32 under :func:`~ziggurat.core.schema.label_column`; ``@weight`` float32; ``@group``
int64; ``@time``. pyarrow, polars and DuckDB can open the files directly.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa

from ziggurat.core.errors import DataError
from ziggurat.core.files import explained_writes, sync, write_json
from ziggurat.core.schema import GROUP_COLUMN, TIME_COLUMN, WEIGHT_COLUMN, Schema, label_column

FORMAT_VERSION = 1
BLOCK_ROWS = 65_536
FILE_BLOCKS = 32
_PADDING_BYTES = 64

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)


def arrow_schema(schema: Schema) -> pa.Schema:
    """Returns the Arrow schema of the files of a dataset with this ``schema``."""

    def ids(feature: str) -> pa.DataType:
        return pa.int64() if schema.rows[schema.tables[feature]] >= 2**31 else pa.int32()

    fields = [pa.field(name, pa.float32()) for name in schema.dense]
    fields += [pa.field(name, ids(name)) for name in schema.categorical]
    fields += [pa.field(name, pa.list_(ids(name))) for name in (*schema.bags, *schema.sequences)]
    fields += [pa.field(label_column(name), pa.float32()) for name in schema.labels]
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
        write_json(
            self._folder / "manifest.json", manifest(fingerprint, self._schema, self._block_rows, self.close(), details)
        )


def write_split_file(
    path: Path, schema: Schema, block_rows: int, rows: Iterable[pa.RecordBatch], scratch: Path
) -> None:
    """Writes a single file of a split, byte for byte the file that :class:`DatasetWriter` would have written.

    Args:
        path: the path of the file in the dataset; it appears there only when complete.
        schema: the schema of the dataset.
        block_rows: rows per block.
        rows: the rows of the file, at most ``FILE_BLOCKS`` blocks; columns as for :meth:`DatasetWriter.append`.
        scratch: a folder on the same filesystem that nothing else uses.
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


def manifest(
    fingerprint: str, schema: Schema, block_rows: int, splits: Mapping[str, Any], details: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the content of ``manifest.json``; ``splits`` holds a result of :func:`split_files` for each split."""
    return {
        "format_version": FORMAT_VERSION,
        "fingerprint": fingerprint,
        "schema": schema.to_json(),
        "block_rows": block_rows,
        "splits": dict(splits),
        **details,
    }


def split_files(sizes: Sequence[int]) -> dict[str, Any]:
    """Returns the manifest entry of a split: the files that hold blocks of these sizes."""
    groups = [list(sizes[first : first + FILE_BLOCKS]) for first in range(0, len(sizes), FILE_BLOCKS)]
    files = [{"name": f"{number:05d}.arrow", "blocks": blocks} for number, blocks in enumerate(groups)]
    return {"rows": sum(sizes), "files": files}


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
        with explained_writes(self._folder):
            self._open_file().write_batch(_compact(block))
        self._files[-1]["blocks"].append(block.num_rows)
        if len(self._files[-1]["blocks"]) == FILE_BLOCKS:
            self._close_file()

    def _open_file(self) -> Any:
        if self._writer is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            name = f"{len(self._files):05d}.arrow"
            self._writer = pa.ipc.new_file(str(self._folder / name), self._schema)
            self._files.append({"name": name, "blocks": []})
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


@dataclass(frozen=True, slots=True)
class SplitBlocks:
    """The blocks of one split, in file order, opened as memory maps on demand.

    Attributes:
        folder: the split's folder.
        blocks: (file name, index in the file, number of rows) of each block.
    """

    folder: Path
    blocks: tuple[tuple[str, int, int], ...]

    @property
    def rows(self) -> int:
        return sum(self.sizes)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of rows in each block."""
        return tuple(rows for _, _, rows in self.blocks)

    def read(self, block: int) -> pa.RecordBatch:
        """Returns a zero-copy view of one block.

        Raises:
            DataError: the file is missing or truncated, or differs from the manifest.
        """
        name, index, rows = self.blocks[block]
        path = self.folder / name
        if not self.folder.is_dir():
            raise DataError(
                f"{self.folder}: the rows of this split are not here: a run fed by readers copies no training rows",
                "name the folder of the whole dataset: --prepared DIR",
            )
        try:
            batch = pa.ipc.open_file(pa.memory_map(str(path))).get_batch(index)
        except (OSError, pa.ArrowInvalid) as error:
            raise DataError(
                f"{path}: block {index} cannot be read: {error}",
                "delete the prepared folder and run `ziggurat prepare` again",
            ) from error
        if batch.num_rows != rows:
            raise DataError(
                f"{path}: block {index} holds {batch.num_rows} rows, the manifest says {rows}",
                "delete the prepared folder and run `ziggurat prepare` again",
            )
        return batch


class Dataset:
    """A prepared dataset folder, opened for reading.

    Raises:
        DataError: the folder holds no complete dataset, or one of another format version.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path = folder / "manifest.json"
        try:
            self.manifest: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise DataError(
                f"{folder}: no prepared dataset (manifest.json is missing)", "run `ziggurat prepare` first"
            ) from None
        version = self.manifest.get("format_version")
        if version != FORMAT_VERSION:
            raise DataError(
                f"{path}: dataset format {version!r}, this ziggurat reads {FORMAT_VERSION}",
                "delete the folder and run `ziggurat prepare` again",
            )
        self.schema = Schema.from_json(self.manifest["schema"])

    @property
    def fingerprint(self) -> str:
        return self.manifest["fingerprint"]

    def split(self, name: Split) -> SplitBlocks:
        """Returns the blocks of ``train``, ``validation`` or ``test`` (possibly none)."""
        files = self.manifest["splits"][name]["files"]
        blocks = tuple((file["name"], i, rows) for file in files for i, rows in enumerate(file["blocks"]))
        return SplitBlocks(self.folder / name, blocks)
