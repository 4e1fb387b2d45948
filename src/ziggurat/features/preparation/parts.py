"""The staged parts: every raw value once, as small numbers, column by column.

A part is one :mod:`column file <ziggurat.features.preparation.column_file>`: for each row, its numbers in the narrowest
type that holds them exactly, its ids as codes, its targets as they will be written; and for each id column, its
distinct values in the order of their codes. Memory maps are avoided, for they would count as resident memory.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ziggurat.core.files import explained_writes
from ziggurat.features.columns import Codes
from ziggurat.features.preparation.column_file import ColumnFile, write_columns

SPLIT_COLUMN = "@split"
KEY_COLUMN = "@key"


@dataclass(frozen=True, slots=True)
class StagedPart:
    """The content of a part.

    Attributes:
        numbers: raw column -> numbers, NaN for missing; :func:`narrow` makes them small.
        ids: raw column -> its distinct values and codes.
        targets: labels, weight, group, time, and :data:`SPLIT_COLUMN` or :data:`KEY_COLUMN`.
    """

    numbers: Mapping[str, npt.NDArray[np.float32 | np.float64]]
    ids: Mapping[str, tuple[pa.Array, Codes]]
    targets: Mapping[str, npt.NDArray[Any]]


def write_part(folder: Path, place: int | str, content: StagedPart) -> None:
    """Write a part under its number, or for now under another name; it counts once the caller has recorded it."""
    columns: dict[str, pa.Array] = {f"number:{name}": pa.array(values) for name, values in content.numbers.items()}
    for name, (values, codes) in content.ids.items():
        columns |= {f"values:{name}": values, f"codes:{name}": _codes_array(codes)}
    columns |= {f"target:{name}": pa.array(values) for name, values in content.targets.items()}
    write_columns(part_path(folder, place) if isinstance(place, int) else folder / place, columns)


class StagedParts:
    """The staged parts that hold rows, numbered from 0 in order.

    Attributes:
        rows: of each part.
    """

    def __init__(self, folder: Path, rows: Sequence[int]) -> None:
        """``rows[n]`` is the number of rows written as part n; parts without rows have no files and are left out."""
        self._files = [ColumnFile(part_path(folder, number)) for number, count in enumerate(rows) if count]
        self.rows = [count for count in rows if count]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def starts(self) -> npt.NDArray[np.int64]:
        """Number of each part's first row, counting from 0 over all parts."""
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(self.rows, dtype=np.int64)])[:-1]

    def numbers(self, part: int, column: str) -> npt.NDArray[np.float64]:
        """A raw numeric column, NaN for missing."""
        return self._files[part].read(f"number:{column}").to_numpy().astype(np.float64)

    def codes(self, part: int, column: str) -> Codes:
        """The codes of an id column."""
        array = self._files[part].read(f"codes:{column}")
        if not pa.types.is_large_list(array.type):
            return Codes(array.to_numpy())
        missing = array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None
        return Codes(array.values.to_numpy(), array.offsets.to_numpy(), missing)

    def values(self, part: int, column: str) -> pa.Array:
        """The distinct values of an id column."""
        return self._files[part].read(f"values:{column}")

    def target(self, part: int, name: str) -> npt.NDArray[Any]:
        """A target column as it was staged."""
        return self._files[part].read(f"target:{name}").to_numpy()


class IdWriter:
    """Writes the ids of one raw column's distinct values in one table: a record batch for each part, missing last.

    The file is there once it is closed, and whole, whoever else writes the same one.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
        self._writer: pa.RecordBatchFileWriter | None = None

    def append(self, ids: npt.NDArray[np.int32 | np.int64]) -> None:
        """Write the ids of the next part; all parts have the same dtype."""
        batch = pa.record_batch({"ids": pa.array(ids)})
        with explained_writes(self._path):
            if self._writer is None:
                self._writer = pa.ipc.new_file(str(self._temporary), batch.schema)
            self._writer.write_batch(batch)

    def close(self) -> None:
        if self._writer is not None:
            with explained_writes(self._path):
                self._writer.close()
                self._temporary.replace(self._path)


def read_ids(path: Path, part: int) -> npt.NDArray[np.int32 | np.int64]:
    """The ids of one part."""
    with pa.OSFile(str(path)) as file:
        return pa.ipc.open_file(file).get_batch(part).column(0).to_numpy()


def part_path(folder: Path, number: int) -> Path:
    """Where the part of this number lies."""
    return folder / f"{number:05d}.part"


def narrow(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float32 | np.float64]:
    """The values as float32 where that loses nothing, else as they are."""
    with np.errstate(over="ignore"):
        single = values.astype(np.float32)
    return single if np.array_equal(single.astype(np.float64).view(np.int64), values.view(np.int64)) else values


def _codes_array(codes: Codes) -> pa.Array:
    largest = int(codes.codes.max(initial=0))
    narrowed = pa.array(codes.codes.astype(np.min_scalar_type(largest), copy=False))
    if codes.offsets is None:
        return narrowed
    mask = None if codes.missing is None else pa.array(codes.missing)
    return pa.LargeListArray.from_arrays(pa.array(codes.offsets), narrowed, mask=mask)
