"""Assigns every staged row to a split: row by row while staging, or afterwards from the times of all rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ziggurat.core.errors import DataError
from ziggurat.core.hashing import UInt64Array, hash_integers, hash_text
from ziggurat.core.schema import TIME_COLUMN
from ziggurat.data.encoded.manifest import SPLITS
from ziggurat.data.encoded.split import (
    TRAIN,
    Assignment,
    FilesSplit,
    RandomSplit,
    SplitConfig,
    TimeSplit,
    TimeWithinKeySplit,
    assign_by_hash,
    assign_by_time,
    assign_by_time_within_key,
)
from ziggurat.data.readers.blocks import RawBlock
from ziggurat.features.checks import CheckedRows, keys
from ziggurat.features.negatives_config import NegativesConfig
from ziggurat.features.preparation.parts import ITEM_COLUMN, KEY_COLUMN, SPLIT_COLUMN, USER_COLUMN


def split_columns(
    split: SplitConfig, file_split: int, block: RawBlock, checked: CheckedRows
) -> dict[str, npt.NDArray[Any]]:
    """Returns the columns to stage so that the splits of a block's rows can be assigned: splits, keys, or none.

    Args:
        split: the config of the split.
        file_split: the split of the block's file, if files decide the split.
        block: the raw block.
        checked: its checked rows.
    """
    match split:
        case FilesSplit():
            if file_split == TRAIN and split.share:
                hashes = hash_integers(_row_hashes(block, checked).view(np.int64), split.seed)
                return {SPLIT_COLUMN: assign_by_hash(hashes, split.share, 0.0)}
            return {SPLIT_COLUMN: np.full(len(checked.rows), file_split, np.uint8)}
        case RandomSplit(key=None):
            hashes = hash_integers(_row_hashes(block, checked).view(np.int64), split.seed)
            return {SPLIT_COLUMN: assign_by_hash(hashes, split.validation, split.test)}
        case RandomSplit(key=str() as key):
            hashes = hash_integers(keys(checked.table.column(key)), split.seed)
            return {SPLIT_COLUMN: assign_by_hash(hashes, split.validation, split.test)}
        case TimeWithinKeySplit():
            return {KEY_COLUMN: keys(checked.table.column(split.key))}
        case _:
            return {}


def sampling_columns(negatives: NegativesConfig | None, checked: CheckedRows) -> dict[str, npt.NDArray[np.int64]]:
    """Returns the columns to stage so that negatives can be sampled: keys of user and item, or none."""
    if negatives is None:
        return {}
    columns = {USER_COLUMN: negatives.user, ITEM_COLUMN: negatives.item}
    return {name: keys(checked.table.column(column)) for name, column in columns.items()}


class Staged(Protocol):
    """Rows that were read: the targets of each part, and the number of its first row among all rows."""

    @property
    def starts(self) -> npt.NDArray[np.int64]: ...

    def __len__(self) -> int: ...

    def target(self, part: int, name: str) -> npt.NDArray[Any]: ...


def assign(split: SplitConfig, parts: Staged) -> list[Assignment]:
    """Returns the split of each row, for each part. Splits by time hold a time and a key of every row in memory.

    Raises:
        DataError: there are no training rows.
    """
    match split:
        case TimeSplit():
            times = np.concatenate(_column(parts, TIME_COLUMN))
            assignment = assign_by_time(times, split.validation, split.test)
        case TimeWithinKeySplit():
            times, row_keys = np.concatenate(_column(parts, TIME_COLUMN)), np.concatenate(_column(parts, KEY_COLUMN))
            assignment = assign_by_time_within_key(row_keys, times, split.validation, split.test)
        case _:
            assignment = np.concatenate(_column(parts, SPLIT_COLUMN))
    _check_training(split, assignment)
    return np.split(assignment, parts.starts[1:])


def _column(parts: Staged, name: str) -> list[npt.NDArray[Any]]:
    return [parts.target(part, name) for part in range(len(parts))]


def _check_training(split: SplitConfig, assignment: Assignment) -> None:
    counts = np.bincount(assignment, minlength=len(SPLITS))
    if counts[TRAIN] == 0:
        sizes = ", ".join(f"{name} {count:,}" for name, count in zip(SPLITS, counts, strict=True))
        why = "; rows with equal times stay together, and all the last ones are equal" if split.name == "time" else ""
        raise DataError(
            f"split {split.name!r} leaves no training rows ({sizes}){why}",
            "give more data or smaller shares for validation and test, or choose another data.split",
        )


def _row_hashes(block: RawBlock, checked: CheckedRows) -> UInt64Array:
    """Returns a hash of each row's file name (without its folder) and line."""
    name = hash_text(pa.array([Path(block.file).name]))
    return hash_integers(block.lines[checked.rows], int(name[0]))
