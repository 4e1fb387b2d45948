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

from ziggurat.core.digests import digest_of_parts
from ziggurat.core.files import explained_writes
from ziggurat.core.untrusted import arrow_errors, opened
from ziggurat.features.columns import Codes
from ziggurat.features.preparation.column_file import STAGE_AGAIN, ColumnFile, write_columns

SPLIT_COLUMN = "@split"
KEY_COLUMN = "@key"
USER_COLUMN, ITEM_COLUMN = "@user", "@item"
"""Keys of user and item, int64, if negatives are sampled."""
PLACE_COLUMN = "@place"
"""Of rows with sampled negatives among them, int64: places in the log; a negative has that of its positive."""


@dataclass(frozen=True, slots=True)
class StagedPart:
    """The content of a part.

    Attributes:
        numbers: the numbers of each raw numeric column, NaN for missing; made small by :func:`narrow`.
        ids: the distinct values and codes of each raw id column.
        targets: labels, weight, group, time, :data:`SPLIT_COLUMN` or :data:`KEY_COLUMN`, and what negatives need.
    """

    numbers: Mapping[str, npt.NDArray[np.float32 | np.float64]]
    ids: Mapping[str, tuple[pa.Array, Codes]]
    targets: Mapping[str, npt.NDArray[Any]]


def write_part(folder: Path, name: int | str, content: StagedPart) -> str:
    """Writes a part under its number, or under a temporary name, and returns its checksum.

    A part is valid once the caller has recorded it with its checksum.
    """
    columns: dict[str, pa.Array] = {f"number:{column}": pa.array(values) for column, values in content.numbers.items()}
    for column, (values, codes) in content.ids.items():
        columns |= {f"values:{column}": values, f"codes:{column}": _codes_array(codes)}
    columns |= {f"target:{column}": pa.array(values) for column, values in content.targets.items()}
    return write_columns(part_path(folder, name) if isinstance(name, int) else folder / name, columns)


class StagedParts:
    """The staged parts that contain rows, numbered from 0.

    Attributes:
        rows: number of rows of each part.
    """

    def __init__(self, folder: Path, recorded: Sequence[tuple[int, str]]) -> None:
        """Opens the parts of which ``recorded`` has rows and checksum; those without rows have no files.

        Raises:
            DataError: a file is missing, or is not the recorded one.
        """
        self._files = [
            ColumnFile(part_path(folder, number), checksum) for number, (rows, checksum) in enumerate(recorded) if rows
        ]
        self.rows = [rows for rows, _ in recorded if rows]

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


@dataclass(frozen=True, slots=True)
class IdFile:
    """The ids that one table assigns to the distinct values of one raw column, part by part.

    Attributes:
        path: the file that an :class:`IdWriter` wrote.
        checksums: the checksum of each part's ids.
        codes: the most ids of a value.
    """

    path: Path
    checksums: tuple[str, ...]
    codes: int = 1

    def read(self, part: int) -> npt.NDArray[np.int32 | np.int64]:
        """Reads the ids of one part.

        Raises:
            DataError: the file is missing or damaged.
        """
        where = f"{self.path}: part {part}"
        try:
            with opened(self.path, STAGE_AGAIN), arrow_errors(where, STAGE_AGAIN), pa.OSFile(str(self.path)) as file:
                batch = pa.ipc.open_file(file).get_batch(part)
                batch.validate()
                ids = batch.column("ids").to_numpy() if batch.schema.names == ["ids"] else np.empty(0, np.int32)
        except FileNotFoundError:
            raise STAGE_AGAIN.of(self.path, "is missing") from None
        if _ids_checksum(ids) != self.checksums[part]:
            raise STAGE_AGAIN.of(where, "is damaged: its content differs from its checksum")
        return ids if self.codes == 1 else ids.reshape(-1, self.codes)


class IdWriter:
    """Writes the ids that one table assigns to the distinct values of one raw column.

    The file has a record batch per part, each with the id of a missing value last. It appears, complete, when the
    writer is closed, even if several processes write the same file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
        self._writer: pa.RecordBatchFileWriter | None = None
        self._checksums: list[str] = []
        self._codes = 1

    def append(self, ids: npt.NDArray[np.int32 | np.int64]) -> None:
        """Writes the ids of the next part, (n,) or (n, codes); all parts must have the same dtype."""
        self._codes = 1 if ids.ndim == 1 else ids.shape[1]
        ids = ids.ravel()
        batch = pa.record_batch({"ids": pa.array(ids)})
        with explained_writes(self._path):
            if self._writer is None:
                self._writer = pa.ipc.new_file(str(self._temporary), batch.schema)
            self._writer.write_batch(batch)
        self._checksums.append(_ids_checksum(ids))

    def close(self) -> IdFile:
        if self._writer is not None:
            with explained_writes(self._path):
                self._writer.close()
                self._temporary.replace(self._path)
        return IdFile(self._path, tuple(self._checksums), self._codes)


def part_path(folder: Path, number: int) -> Path:
    """Returns the path of a part."""
    return folder / f"{number:05d}.part"


def narrow(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float32 | np.float64]:
    """Returns the values as float32 if that is exact, otherwise unchanged."""
    with np.errstate(over="ignore"):
        single = values.astype(np.float32)
    return single if np.array_equal(single.astype(np.float64).view(np.int64), values.view(np.int64)) else values


def _ids_checksum(ids: npt.NDArray[np.int32 | np.int64]) -> str:
    return digest_of_parts([ids.dtype.str.encode(), ids])


def _codes_array(codes: Codes) -> pa.Array:
    largest = int(codes.codes.max(initial=0))
    narrowed = pa.array(codes.codes.astype(np.min_scalar_type(largest), copy=False))
    if codes.offsets is None:
        return narrowed
    mask = None if codes.missing is None else pa.array(codes.missing)
    return pa.LargeListArray.from_arrays(pa.array(codes.offsets), narrowed, mask=mask)
