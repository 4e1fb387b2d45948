"""Staged parts: the raw values of some rows, as small numbers, column by column.

A part is a :mod:`column file <ziggurat.features.preparation.column_file>`. It contains the numbers of each row in the
narrowest exact type, the ids as codes, the targets as they will be written, and for each id column the distinct values
in the order of their codes. Files are not memory-mapped, because mapped pages would count as resident memory.
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
        numbers: the numbers of each raw numeric column, NaN for missing; made small by :func:`narrow`.
        ids: the distinct values and codes of each raw id column.
        targets: labels, weight, group, time, and :data:`SPLIT_COLUMN` or :data:`KEY_COLUMN`.
    """

    numbers: Mapping[str, npt.NDArray[np.float32 | np.float64]]
    ids: Mapping[str, tuple[pa.Array, Codes]]
    targets: Mapping[str, npt.NDArray[Any]]


def write_part(folder: Path, name: int | str, content: StagedPart) -> None:
    """Writes a part under its number, or under a temporary name. A part is valid once the caller has recorded it."""
    columns: dict[str, pa.Array] = {f"number:{column}": pa.array(values) for column, values in content.numbers.items()}
    for column, (values, codes) in content.ids.items():
        columns |= {f"values:{column}": values, f"codes:{column}": _codes_array(codes)}
    columns |= {f"target:{column}": pa.array(values) for column, values in content.targets.items()}
    write_columns(part_path(folder, name) if isinstance(name, int) else folder / name, columns)


class StagedParts:
    """The staged parts that contain rows, numbered from 0.

    Attributes:
        rows: number of rows of each part.
    """

    def __init__(self, folder: Path, rows: Sequence[int]) -> None:
        """``rows[n]`` is the number of rows of part n. Parts without rows have no files and are left out."""
        self._files = [ColumnFile(part_path(folder, number)) for number, count in enumerate(rows) if count]
        self.rows = [count for count in rows if count]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def starts(self) -> npt.NDArray[np.int64]:
        """Number of each part's first row, counted from 0 over all parts."""
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(self.rows, dtype=np.int64)])[:-1]

    def numbers(self, part: int, column: str) -> npt.NDArray[np.float64]:
        """Reads a raw numeric column, NaN for missing."""
        return self._files[part].read(f"number:{column}").to_numpy().astype(np.float64)

    def codes(self, part: int, column: str) -> Codes:
        """Reads the codes of an id column."""
        array = self._files[part].read(f"codes:{column}")
        if not pa.types.is_large_list(array.type):
            return Codes(array.to_numpy())
        missing = array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None
        return Codes(array.values.to_numpy(), array.offsets.to_numpy(), missing)

    def values(self, part: int, column: str) -> pa.Array:
        """Reads the distinct values of an id column."""
        return self._files[part].read(f"values:{column}")

    def target(self, part: int, name: str) -> npt.NDArray[Any]:
        """Reads a target column."""
        return self._files[part].read(f"target:{name}").to_numpy()


class IdWriter:
    """Writes the ids that one table assigns to the distinct values of one raw column.

    The file has a record batch per part, each with the id of a missing value last. It appears, complete, when the
    writer is closed, even if several processes write the same file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
        self._writer: pa.RecordBatchFileWriter | None = None

    def append(self, ids: npt.NDArray[np.int32 | np.int64]) -> None:
        """Writes the ids of the next part; all parts must have the same dtype."""
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
    """Reads the ids of one part from a file of :class:`IdWriter`."""
    with pa.OSFile(str(path)) as file:
        return pa.ipc.open_file(file).get_batch(part).column(0).to_numpy()


def part_path(folder: Path, number: int) -> Path:
    """Returns the path of a part."""
    return folder / f"{number:05d}.part"


def narrow(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float32 | np.float64]:
    """Returns the values as float32 if that is exact, otherwise unchanged."""
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
