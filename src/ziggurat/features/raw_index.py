"""An index of raw logs: where the rows of each split are, so that any block can be made on demand.

Building the index takes one pass over the files. They are cut into *ranges* of about 2 MiB. The index records where
each range begins and ends, how many rows of each split it contains, and the split of each row. A block of the prepared
dataset consists of consecutive rows of a split in reading order, so it can be made from the ranges that contain them.

Layout of an index folder::

    index.json        fingerprint of configs and files, counts of rejected rows, and checksums of all three files
    pieces.npy        int64 (ranges, 10): source; start and end as file, offset, line; rows of each split
    splits.npy        uint8 (rows,): the split of each good row, in reading order
    quarantine.jsonl  rejected rows, if ``on_bad_row`` quarantines them
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

from ziggurat.core.digests import FileChecksum
from ziggurat.core.errors import ConfigError, DataError
from ziggurat.core.files import atomic_folder
from ziggurat.core.progress import Progress
from ziggurat.core.schema import TIME_COLUMN
from ziggurat.core.sealed import declared, read_sealed_json, write_sealed_json
from ziggurat.core.untrusted import Damage, is_plain_folder, opened
from ziggurat.data.encoded.manifest import SPLITS
from ziggurat.data.encoded.split import Assignment
from ziggurat.data.readers.blocks import Position
from ziggurat.data.readers.quarantine import Quarantine
from ziggurat.data.readers.reader import RawSource
from ziggurat.features.bracket_check import check_brackets
from ziggurat.features.checks import CheckedRows, check_rows
from ziggurat.features.config import DataConfig, FeatureConfig
from ziggurat.features.preparation.block_batching import SplitSource, bytes_before
from ziggurat.features.preparation.prepare import QUARANTINE, open_sources
from ziggurat.features.preparation.splitting import assign, split_columns
from ziggurat.features.preparation_plan import Preparation

INDEX_VERSION = 2
RANGE_BYTES = 2 * 2**20
"""Bytes of text of a range. A block of 65,536 rows then spans about ten ranges, so few unneeded rows are read."""

_RANGE_COLUMNS = 7
"""Columns of ``pieces.npy`` before the row counts."""


_WRITTEN = Damage(DataError, "check the disk")


@dataclass(frozen=True, slots=True)
class _Index:
    """The content of ``index.json``."""

    version: int
    fingerprint: str
    quarantined: dict[str, Any]
    pieces: FileChecksum
    splits: FileChecksum


@dataclass(frozen=True, slots=True)
class RawIndex:
    """An opened index.

    Attributes:
        fingerprint: fingerprint of the configs and files that it was made from.
        rejected: number of rejected rows, and a line for each reason.
        ranges: contents of ``pieces.npy``.
        splits: contents of ``splits.npy``, memory-mapped.
    """

    fingerprint: str
    rejected: dict[str, Any]
    ranges: npt.NDArray[np.int64]
    splits: Assignment

    @classmethod
    def open(cls, folder: Path) -> RawIndex:
        """Opens an index that :func:`index_raw` wrote.

        Raises:
            DataError: a file of it is missing, damaged, or contradicts the others.
        """
        damage = Damage(DataError, f"delete {folder}, and run the same command again: it indexes the files anew")
        if not is_plain_folder(folder):
            raise damage.of(folder, "is no folder, or a symbolic link, which is not followed")
        try:
            values = declared(_Index, read_sealed_json(folder / "index.json", damage), folder / "index.json", damage)
            values.pieces.check(folder / "pieces.npy", damage)
            values.splits.check(folder / "splits.npy", damage)
            ranges = np.array(_numbers(folder / "pieces.npy", np.int64, (None, _RANGE_COLUMNS + len(SPLITS)), damage))
            splits = _numbers(folder / "splits.npy", np.uint8, (None,), damage)
        except FileNotFoundError as error:
            raise damage.of(str(error.filename), "is missing") from None
        counts = ranges[:, _RANGE_COLUMNS:]
        if (ranges < 0).any() or int(counts.sum()) != len(splits):
            raise damage.of(
                folder / "pieces.npy", f"is damaged: it does not have the {len(splits):,} rows of splits.npy"
            )
        return cls(values.fingerprint, values.quarantined, ranges, splits)

    def rows(self, split: int | None = None) -> npt.NDArray[np.int64]:
        """Returns the number of rows of each range, of one split or of all."""
        counts = self.ranges[:, _RANGE_COLUMNS:]
        return counts.sum(axis=1) if split is None else counts[:, split]

    def file_range(self, number: int) -> tuple[int, Position, Position]:
        """Returns source, start and end of a range."""
        source, *bounds = (int(value) for value in self.ranges[number, :_RANGE_COLUMNS])
        return source, Position(*bounds[:3]), Position(*bounds[3:])


def index_raw(
    data: DataConfig,
    features: Sequence[FeatureConfig],
    folder: Path,
    progress: Progress,
    range_bytes: int = RANGE_BYTES,
) -> None:
    """Writes the index of the raw files into ``folder``; does nothing if it exists already.

    Raises:
        ConfigError: the configs contradict each other.
        DataError: a file cannot be read as declared, a row is bad under ``on_bad_row: fail``, or there are no training
            rows.
    """
    if data.negatives is not None:
        raise ConfigError(
            "data.negatives: readers that serve raw files do not sample negatives",
            "prepare the dataset, and serve that: ziggurat prepare EXPERIMENT, then ziggurat ingest PREPARED",
        )
    sources = open_sources(data, features, range_bytes)
    plan = Preparation.plan(data, features, [item.source.fingerprint() for item in sources])
    if _is_indexed(folder, plan.fingerprint):
        return
    with atomic_folder(folder) as temporary, Quarantine(temporary / QUARANTINE, data.on_bad_row) as quarantine:
        progress.start("index", sum(item.source.total_bytes for item in sources), "bytes")
        ranges = _RangesWithRows()
        for each in _read_ranges(plan, sources):
            quarantine.add(each.checked.bad)
            ranges.add(each)
            progress.advance(each.done_bytes, rows=float(ranges.total))
        if not ranges.total:
            raise DataError("data: no usable rows", "check data.source and the columns' types")
        splits = assign(data.split, ranges)
        counts = [np.bincount(each, minlength=len(SPLITS)) for each in splits]
        np.save(temporary / "pieces.npy", np.hstack([np.array(ranges.file_ranges), np.array(counts)]).astype(np.int64))
        np.save(temporary / "splits.npy", np.concatenate(splits))
        rejected = {"rows": quarantine.total, "summary": quarantine.summary()}
        checksums = {name: FileChecksum.of(temporary / f"{name}.npy", _WRITTEN) for name in ("pieces", "splits")}
        values = _Index(INDEX_VERSION, plan.fingerprint, rejected, **checksums)
        write_sealed_json(temporary / "index.json", asdict(values))
        progress.finish(f"{ranges.total:,} rows")


@dataclass(frozen=True, slots=True)
class _ReadRange:
    """A range as it is read.

    Attributes:
        file_range: its first columns in ``pieces.npy``.
        checked: its checked rows.
        split_columns: columns that determine the split of its rows.
        done_bytes: bytes of all sources read so far.
    """

    file_range: tuple[int, ...]
    checked: CheckedRows
    split_columns: dict[str, npt.NDArray[Any]]
    done_bytes: int


@dataclass(slots=True)
class _RangesWithRows:
    """The ranges that contain rows; :func:`assign` takes them as parts."""

    file_ranges: list[tuple[int, ...]] = field(default_factory=list[tuple[int, ...]])
    sizes: list[int] = field(default_factory=list[int])
    split_columns: list[dict[str, npt.NDArray[Any]]] = field(default_factory=list[dict[str, npt.NDArray[Any]]])
    total: int = 0

    def add(self, read: _ReadRange) -> None:
        rows = len(read.checked.rows)
        if rows:
            self.file_ranges.append(read.file_range)
            self.sizes.append(rows)
            self.split_columns.append(read.split_columns)
            self.total += rows

    @property
    def starts(self) -> npt.NDArray[np.int64]:
        return np.cumsum([0, *self.sizes[:-1]], dtype=np.int64)

    def __len__(self) -> int:
        return len(self.sizes)

    def target(self, part: int, name: str) -> npt.NDArray[Any]:
        return self.split_columns[part][name]


def _read_ranges(plan: Preparation, sources: Sequence[SplitSource]) -> Iterator[_ReadRange]:
    before = 0
    for number, item in enumerate(sources):
        start = Position()
        for position, block in enumerate(item.source.blocks()):
            if position == 0:
                check_brackets(block.table, plan.features)
            start = _start_of_block(item.source, start, block.file)
            checked = check_rows(block, plan.targets, plan.tables)
            columns = {name: values for name, values in checked.targets.items() if name == TIME_COLUMN}
            columns |= split_columns(plan.data.split, item.split, block, checked)
            end = block.end
            file_range = (number, start.file, start.offset, start.line, end.file, end.offset, end.line)
            done_bytes = before + bytes_before(item.source, block.file) + block.source_bytes
            yield _ReadRange(file_range, checked, columns, done_bytes)
            start = end
        before += item.source.total_bytes


def _start_of_block(source: RawSource, reached: Position, file: str) -> Position:
    """Returns where a block of ``file`` begins if the previous block ended at ``reached``; skips files without rows."""
    number = next(i for i in range(reached.file, len(source.paths)) if str(source.paths[i]) == file)
    return reached if number == reached.file else Position(number)


def _is_indexed(folder: Path, fingerprint: str) -> bool:
    damage = Damage(DataError, f"delete {folder}, and run the same command again: it indexes the files anew")
    try:
        values = read_sealed_json(folder / "index.json", damage, required=False)  # version 1 had no checksum
    except FileNotFoundError:
        return False
    return (values.get("version"), values.get("fingerprint")) == (INDEX_VERSION, fingerprint)


def _numbers(path: Path, dtype: type[np.generic], shape: tuple[int | None, ...], damage: Damage) -> npt.NDArray[Any]:
    """Returns the array in a ``.npy`` file, memory-mapped; its header must agree with the file's size.

    Args:
        path: the file.
        dtype: the dtype that it must have.
        shape: the shape that it must have; None: any size.
        damage: the errors to raise.

    Raises:
        DataError: it is another array, incomplete, or no such file at all.
        FileNotFoundError: there is no such file.
    """
    with opened(path, damage) as file:
        try:
            if npy.read_magic(file) != (1, 0):
                raise ValueError("it is of another version")
            found, in_columns, found_dtype = npy.read_array_header_1_0(file)
        except ValueError as error:
            raise damage.of(path, f"is no array of numbers: {error}") from None
        fits = len(found) == len(shape) and all(size in {None, has} for size, has in zip(shape, found, strict=True))
        if in_columns or found_dtype != np.dtype(dtype) or not fits:
            raise damage.of(path, f"is an array of {found_dtype} {found}, not of {np.dtype(dtype)}")
        stored, needed = os.fstat(file.fileno()).st_size - file.tell(), math.prod(found) * found_dtype.itemsize
        if stored != needed:
            raise damage.of(path, f"is damaged: it has {stored:,} bytes of numbers, its header says {needed:,}")
        if not needed:
            return np.zeros(found, dtype)
        return np.memmap(file, dtype, "r", file.tell(), found)
